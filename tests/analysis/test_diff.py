"""Two hand-made runs against each other: what was put into the second is named, in its size; nothing else is."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.lockstep import lockstep
from tests.timeline.build import run
from traincope.analysis import Analysis, Basis, Diff, Judgement, Moved, analyze, diff
from traincope.events import Phase
from traincope.timeline import build_timeline

US = 1_000
STEP_NS = 100_000


def made(
    seed: int,
    *,
    steps: int = 12,
    data_ns: int = 0,
    slow_rank_ns: int = 0,
    ranks: int = 2,
    mesh: dict[str, int] | None = None,
    **settings: object,
) -> Analysis:
    """Steps of 100 us with 1 % of noise, that of all ranks together; all wait for data, rank 1 computes longer."""
    noise = np.random.default_rng(seed).normal(0, STEP_NS / 100, size=steps)
    work = [_work(int(STEP_NS + one + data_ns), slow_rank_ns, ranks) for one in noise]
    records = lockstep(work, transfer_ns=5 * US, of=Phase.FORWARD if slow_rank_ns else Phase.DATA_WAIT, all_ns=data_ns)
    whole = run(*records, mesh=mesh or {"dp": ranks})
    info = replace(whole.info, settings=dict(settings), id=f"run {seed}")
    return analyze(build_timeline(replace(whole, info=info)))


def _work(ns: int, more_ns: int, ranks: int) -> Sequence[int]:
    return [ns + (more_ns if rank == 1 else 0) for rank in range(ranks)]


def of(found: Diff, term: str) -> Moved:
    return next(moved for moved in found.terms if moved.term == term)


def test_a_data_wait_is_named_in_its_size_and_nothing_else() -> None:
    found = diff(made(1), made(2, data_ns=20 * US))
    assert found.judgement is Judgement.SLOWER
    assert [moved.term for moved in found.movers] == ["data_wait"]
    assert of(found, "data_wait").change == pytest.approx(20 * US)
    assert of(found, "data_wait").path_change == pytest.approx(20 * US)
    assert found.step.change == pytest.approx(20 * US, abs=STEP_NS / 100)
    assert found.interval is not None
    assert found.interval[0] < 20 * US < found.interval[1]


def test_the_other_way_round_it_is_faster() -> None:
    found = diff(made(1, data_ns=20 * US), made(2))
    assert found.judgement is Judgement.FASTER
    assert found.change_ratio == pytest.approx(-20 / 125, abs=0.01)


def test_a_slow_rank_is_half_its_own_work_and_half_its_peers_wait_but_whole_on_the_path() -> None:
    """40 more on rank 1 of 2, for which rank 0 waits."""
    found = diff(made(1), made(2, slow_rank_ns=40 * US))
    assert found.judgement is Judgement.SLOWER
    assert {moved.term for moved in found.movers} == {"forward", "exposed_wait[dp]"}
    forward, wait = of(found, "forward"), of(found, "exposed_wait[dp]")
    assert (forward.rank, wait.rank) == (1, 0)
    assert forward.rank_change == pytest.approx(40 * US, abs=STEP_NS / 100)
    assert forward.change == pytest.approx(20 * US, abs=STEP_NS / 100)
    assert wait.change == pytest.approx(20 * US)
    assert forward.path_change == pytest.approx(40 * US, abs=STEP_NS / 100)
    assert wait.path_change == 0
    assert [finding.kind.value for finding in found.new_findings] == ["straggler"]


def test_of_many_alike_runs_hardly_one_shows_evidence_and_none_is_called_slower() -> None:
    """At a level of 1 % more than 4 of 40 come in one trial of 10,000."""
    found = [diff(made(300 + seed, steps=7), made(400 + seed, steps=7)) for seed in range(40)]
    assert sum(one.judgement is not Judgement.NO_EVIDENCE for one in found) <= 4
    assert sum(bool(one.movers) for one in found) <= 4
    assert not any(one.judgement in (Judgement.SLOWER, Judgement.FASTER) for one in found)


def test_a_change_below_what_was_asked_for_is_small() -> None:
    first, second = made(1), made(2, data_ns=10 * US)
    assert diff(first, second, least_ratio=0.2).judgement is Judgement.SMALL
    assert diff(first, second, least_ratio=0.05).judgement is Judgement.SLOWER


def test_of_too_few_steps_nothing_is_said() -> None:
    """The first of 5 warms up."""
    found = diff(made(1, steps=5), made(2, steps=5, data_ns=50 * US))
    assert found.judgement is Judgement.TOO_FEW
    assert found.step.p is None
    assert found.movers == ()
    assert of(found, "data_wait").change == pytest.approx(50 * US)


def test_on_other_ranks_the_ranks_time_for_a_token_is_compared() -> None:
    """2 ranks take 105 us for 1,000 tokens, 4 take 105 us for 2,000: 0.21 us of a rank each."""
    found = diff(made(1, tokens_per_step=1_000), made(2, ranks=4, tokens_per_step=2_000))
    assert (found.basis, found.reason) == (Basis.TOKEN, "a step has other tokens")
    assert found.step.before == pytest.approx(210, rel=0.01)
    assert found.step.after == pytest.approx(210, rel=0.01)
    assert found.judgement is Judgement.NO_EVIDENCE
    wasted = diff(made(1, tokens_per_step=1_000), made(2, ranks=4, tokens_per_step=1_000))
    assert (wasted.basis, wasted.reason) == (Basis.TOKEN, "a step has other ranks")
    assert wasted.judgement is Judgement.SLOWER
    assert wasted.change_ratio == pytest.approx(1.0, abs=0.02)


def test_of_other_layouts_that_tell_no_tokens_only_shares_are_compared() -> None:
    found = diff(made(1), made(2, ranks=4, data_ns=25 * US))
    assert (found.basis, found.judgement) == (Basis.SHARE, Judgement.OTHER_WORK)
    assert found.reason is not None
    assert found.step.change == 0
    assert of(found, "data_wait").change == pytest.approx(25 / 130, rel=0.01)
    assert of(found, "data_wait").evident


def test_what_else_differs_is_told_by_family_with_both_values() -> None:
    first = made(1, batch=32, optimizer={"lr": 0.1, "name": "adam"})
    second = made(2, batch=64, optimizer={"lr": 0.2, "name": "adam"}, workers=7)
    told = [(one.family, one.name, one.before, one.after) for one in diff(first, second).settings]
    assert told == [
        ("settings", "batch", "32", "64"),
        ("settings", "optimizer.lr", "0.1", "0.2"),
        ("settings", "workers", None, "7"),
    ]


def test_the_same_run_differs_from_itself_in_nothing() -> None:
    alone = made(1)
    found = diff(alone, alone)
    assert found.judgement is Judgement.NO_EVIDENCE
    assert {moved.change for moved in found.terms} == {0.0}
    assert (found.settings, found.new_findings) == ((), ())
