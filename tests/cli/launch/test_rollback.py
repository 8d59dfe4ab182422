"""Bad batches and a kill in real trainings on two ranks: the log of `killed_worker` is the truth about every step."""

from pathlib import Path

import pytest

import traincope
from tests.cli.launch.test_restarts import Step, train
from traincope.analysis import FaultKind, analyze
from traincope.analysis.efficiency.experts import expert_loads
from traincope.analysis.faults.anomalies.data_order import Order

KILL = {"rank": 0, "saving": 6}
"""Rank 0 is killed in the checkpoint of step 6, so the training continues after step 4."""


def steps_of(log: list[Step]) -> list[tuple[int, int]]:
    return [(step.attempt, step.step) for step in log]


@pytest.mark.sweep
def test_rollbacks_and_a_restart_are_recorded_as_they_happened(tmp_path: Path) -> None:
    """Batches 4 and 10 are bad. Saved after each second step, so both rollbacks undo two steps.

    The first attempt passes over batches 3 and 4. So step 5 is batch 7 in both attempts, and batch 10 is in step 8.
    """
    settings = ["stability.not_finite=rollback"]
    run, log = train(tmp_path / "job", kills=[KILL], settings=settings, bad=(4, 10))
    assert steps_of(log) == [
        *((0, step) for step in (1, 2, 3, 4, 3, 4, 5, 6)),
        *((1, step) for step in (5, 6, 7, 8, 7, 8)),
    ]
    assert [at for at, step in enumerate(log) if step.loss != step.loss] == [3, 11]
    assert (log[8].loss, log[9].loss) == (log[6].loss, log[7].loss)
    analysis = analyze(traincope.open_run(run))
    result = analysis.goodput
    assert result is not None
    assert [attempt.num_steps for attempt in result.attempts] == [7, 6]
    assert [attempt.state_steps for attempt in result.attempts] == [5, 8]
    assert (result.steps_rolled_back, result.steps_lost, result.steps_skipped, result.steps_kept) == (4, 1, 0, 8)
    undone_ns = log[3].at_ns - log[1].at_ns + log[11].at_ns - log[9].at_ns
    assert 0 < result.rolled_back_ns < undone_ns + 2 * result.checkpoint_stall_ns
    assert sum(ns or 0 for ns in result.parts.values()) == result.elapsed_ns
    (back,) = (fault for fault in analysis.faults if fault.kind is FaultKind.ROLLBACK)
    assert (back.what, back.evidence) == ("went back to the state after step 6: the loss is NaN", "2 steps undone")
    assert back.ranks == (0, 1)
    assert analysis.data_order is not None
    assert [(each.ranks, each.step, each.order) for each in analysis.data_order.continuations] == [
        ((0, 1), 4, Order.RIGHT)
    ]


@pytest.mark.sweep
def test_skipped_steps_are_not_productive(tmp_path: Path) -> None:
    """Batches 4 and 5 are bad. Step 4 is saved and step 5 is lost, and trained again by the second attempt."""
    run, log = train(tmp_path / "job", kills=[KILL], settings=["stability.not_finite=skip"], bad=(4, 5))
    assert steps_of(log) == [*((0, step) for step in range(1, 7)), *((1, step) for step in range(5, 9))]
    result = analyze(traincope.open_run(run)).goodput
    assert result is not None
    assert (result.steps_done, result.steps_lost, result.steps_skipped, result.steps_kept) == (9, 1, 2, 6)
    assert result.skipped_ns is not None
    assert 0 < result.skipped_ns < log[3].at_ns - log[2].at_ns + log[6].at_ns - log[5].at_ns + result.restart_ns


@pytest.mark.sweep
def test_too_many_rollbacks_halt_with_one_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Batches 3 to 6 are bad. Two rollbacks to step 2 pass over batches 3 and 4. Batch 5 halts."""
    settings = ["stability.not_finite=rollback", "stability.max_rollbacks=2"]
    run, log = train(tmp_path / "job", kills=[], settings=settings, bad=(3, 4, 5, 6))
    assert steps_of(log) == [(0, step) for step in (1, 2, 3, 3, 3)]
    why = "the loss is NaN, after 2 rollbacks without a new checkpoint (stability.max_rollbacks)"
    assert capfd.readouterr().err.count(f"halted after step 3: {why}\n") == 1
    analysis = analyze(traincope.open_run(run))
    (halted,) = (fault for fault in analysis.faults if fault.what.startswith("halted"))
    assert halted.ranks == (0, 1)
    assert analysis.goodput is not None
    assert (analysis.goodput.steps_rolled_back, analysis.goodput.steps_skipped) == (2, 1)


@pytest.mark.sweep
def test_loads_of_experts_leave_out_the_steps_that_were_undone(tmp_path: Path) -> None:
    """Batch 3 is bad, and the loads of each two steps are logged. Both experts get both ranks' 64 tokens of a step."""
    settings = ["stability.not_finite=rollback", "train.log_every=2"]
    experts = ["experts.number=2", "experts.top_k=2", "experts.ffn=32"]
    run, log = train(tmp_path / "job", kills=[], settings=[*settings, *experts], bad=(3,))
    assert steps_of(log) == [(0, step) for step in (1, 2, 3, 3, 4, 5, 6, 7, 8)]
    loads = expert_loads(traincope.open_run(run))
    assert loads is not None
    assert [layer.tokens for layer in loads.layers] == [(64.0, 64.0)]
