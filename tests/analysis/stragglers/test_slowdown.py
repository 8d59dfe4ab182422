"""The what-if analysis against jobs of a simulator that knows each answer, and against a published job."""

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.tables import jobs
from tests.ingest.tables.jobs import MS, Computation, Job, explained, ideal, step_seconds, table
from traincope.analysis.stragglers.operation_order import operation_order
from traincope.analysis.stragglers.slowdown import Slowdown, SlowdownCause, slowdown
from traincope.ingest.tables.reading import read_table
from traincope.ingest.tables.whole_steps import whole_steps

PUBLISHED = Path(__file__).parents[4] / "shared" / "op_traces"


def analysed(job: Job, folder: Path) -> Slowdown:
    whole = whole_steps(read_table(jobs.write_csv(folder / "table.csv", table(job))))
    assert not whole.left_out
    result = slowdown(whole.operations)
    assert result is not None
    return result


def known(value: float | None) -> float:
    assert value is not None
    return value


def usual(of: Computation) -> float:
    return 2 * MS if of.kind == "B" else MS


@cache
def chance(*key: object) -> float:
    """Return a number in [0, 1) that only depends on the key."""
    return random.Random(repr(key)).random()


def noise(of: Computation) -> float:
    return 1 + 0.01 * (chance(of) - 0.5)


def late(of: Computation) -> float:
    """Delay before an operation: up to 5 % of a forward. A replay without delays removes it."""
    return 0.05 * MS * chance("late", of)


def length(of: Computation) -> float:
    """Cost of the sequences of a microbatch, the same on all stages and in both directions; a few are long."""
    drawn = chance("length", of.dp_rank, of.step, of.microbatch)
    return 0.6 + 0.8 * drawn**2 + 0.4 * (drawn > 0.9)


def test_the_real_job_has_its_published_slowdown() -> None:
    """Published with the study: T, T_ideal, S, M_W and M_S of a job on 8 ranks. Our replay gives the same digits."""
    if not PUBLISHED.is_dir():
        pytest.skip("the published job is not here: it belongs to the study, not to this repository")
    pytest.importorskip("pyarrow")
    whole = whole_steps(read_table(PUBLISHED / "trace-ST.parquet"))
    assert (whole.left_out, whole.idle_messages, whole.laid_out) == ({}, 0, True)
    result = slowdown(whole.operations)
    worker, stage = (json.loads((PUBLISHED / name).read_text()) for name in ("mw-ST.json", "ms-ST.json"))
    published = json.loads((PUBLISHED / "result-ST.json").read_text())
    assert result is not None
    assert result.ratio == pytest.approx(published["blocking_slowdown"], rel=1e-6)
    assert (result.replayed_ns, result.ideal_ns) == pytest.approx(
        (worker["tori"] * 1e9, worker["tideal"] * 1e9), rel=1e-6
    )
    assert result.step_ns == pytest.approx(np.mean(list(published["step_t_base"].values())) * 1e9, rel=1e-6)
    assert result.worker_share == pytest.approx(worker["Mw"], abs=1e-4)
    assert result.last_stage_share == pytest.approx(stage["Ms"], abs=1e-4)
    assert (result.cause, result.last_stage) == (SlowdownCause.LAST_STAGE, (6, 7))


def test_one_slow_worker_among_64_is_named(tmp_path: Path) -> None:
    slow = (3, 5)
    job = Job(
        replicas=8,
        stages=8,
        microbatches=4,
        steps=(4, 9),
        seconds=lambda of: usual(of) * noise(of) * (2 if (of.dp_rank, of.part) == slow else 1),
        delay=late,
    )
    result = analysed(job, tmp_path)
    assert result.cause is SlowdownCause.WORKER
    assert result.worker == result.slowest[0] == job.rank(*slow) == 43
    assert len(result.slowest) == 2  # 3 % of 64, rounded up
    assert result.ratio == pytest.approx(jobs.slowdown(job), rel=1e-6)
    chosen = {job.rank(of, part): (of, part) for of in range(8) for part in range(8)}
    slowest = [chosen[rank] for rank in result.slowest]
    assert result.worker_share == pytest.approx(explained(job, lambda of: (of.dp_rank, of.part) in slowest), abs=1e-5)
    assert result.worker_share > 0.9
    assert result.excess_ratio == pytest.approx(1.0, abs=0.01)


def test_unequal_sequences_on_128_ranks_are_the_cause(tmp_path: Path) -> None:
    job = Job(
        replicas=16,
        stages=8,
        microbatches=6,
        steps=(4, 9),
        seconds=lambda of: usual(of) * noise(of) * length(of),
        delay=late,
    )
    result = analysed(job, tmp_path)
    assert result.cause is SlowdownCause.SEQUENCE_LENGTH
    assert result.ratio == pytest.approx(jobs.slowdown(job), rel=1e-6)
    assert known(result.correlation) > 0.99
    assert known(result.stage_correlation) > 0.99
    assert known(result.worker_share) < 0.5


def test_unequal_sequences_are_the_cause_although_the_last_stage_is_heavy(tmp_path: Path) -> None:
    """The last stage explains more than half of the loss here too: lengths cost most where a stage is heavy."""
    job = Job(
        replicas=8,
        stages=4,
        microbatches=6,
        seconds=lambda of: usual(of) * noise(of) * length(of) * (1.9 if of.part == 3 else 1),
    )
    result = analysed(job, tmp_path)
    assert known(result.last_stage_share) > 0.5
    assert result.last_stage_share == pytest.approx(explained(job, lambda of: of.part == 3), abs=1e-5)
    assert result.cause is SlowdownCause.SEQUENCE_LENGTH


def test_a_heavy_last_stage_is_the_cause_although_sequences_differ_a_little(tmp_path: Path) -> None:
    """Forward and backward times are proportional here: the correlation alone would name the lengths."""
    job = Job(
        replicas=2,
        stages=4,
        microbatches=8,
        seconds=lambda of: usual(of) * (1 + 0.05 * length(of)) * (1.6 if of.part == 3 else 1),
        delay=late,
    )
    result = analysed(job, tmp_path)
    assert result.correlation == pytest.approx(1.0, abs=1e-3)
    assert result.cause is SlowdownCause.LAST_STAGE
    assert result.ratio == pytest.approx(jobs.slowdown(job), rel=1e-6)
    assert result.last_stage_share == pytest.approx(explained(job, lambda of: of.part == 3), abs=1e-5)
    assert result.excess_ratio == pytest.approx(0.6, abs=0.01)


def test_workers_that_are_slow_in_turn_are_no_unequal_sequences(tmp_path: Path) -> None:
    """In each step other workers are slow throughout, so their forwards and backwards vary together. Their
    neighbours in the pipeline do not.
    """
    job = Job(
        replicas=6,
        stages=4,
        microbatches=4,
        steps=tuple(range(6)),
        seconds=lambda of: usual(of) * noise(of) * (1.8 if chance("slow", of.dp_rank, of.part, of.step) < 0.2 else 1),
    )
    result = analysed(job, tmp_path)
    assert known(result.ratio) > 1.1
    assert known(result.correlation) > 0.99
    assert result.cause is SlowdownCause.UNKNOWN
    assert result.reason is not None


def test_a_healthy_job_has_no_cause(tmp_path: Path) -> None:
    job = Job(replicas=2, stages=4, microbatches=8, seconds=lambda of: usual(of) * noise(of), delay=late)
    result = analysed(job, tmp_path)
    assert (result.cause, result.reason) == (SlowdownCause.NONE, None)
    assert result.ratio == pytest.approx(jobs.slowdown(job), rel=1e-6)
    assert result.ratio < 1.02


def test_interleaved_chunks_are_replayed_exactly(tmp_path: Path) -> None:
    job = Job(
        replicas=2,
        stages=4,
        chunks=2,
        microbatches=8,
        seconds=lambda of: usual(of) * (1 + 0.4 * chance(of)),
        delay=late,
    )
    result = analysed(job, tmp_path)
    assert result.ratio == pytest.approx(jobs.slowdown(job), rel=1e-6)
    assert result.replayed_ns == pytest.approx(step_seconds(job, job.seconds) * 1e9, abs=2_000)
    assert result.ideal_ns == pytest.approx(step_seconds(job, ideal(job)) * 1e9, abs=2_000)
    assert result.last_stage_share == pytest.approx(explained(job, lambda of: of.part % 4 == 3), abs=1e-4)


def test_a_replay_longer_than_the_recorded_steps_has_an_unknown_cause(tmp_path: Path) -> None:
    """Operations that lasted twice as long as until the next one began do not fit into the steps."""
    job = Job(replicas=2, stages=4, microbatches=8)
    operations = whole_steps(read_table(jobs.write_csv(tmp_path / "table.csv", table(job)))).operations
    wrong = replace(operations, end_ns=2 * operations.end_ns - operations.start_ns)
    result = slowdown(wrong)
    assert result is not None
    assert result.cause is SlowdownCause.UNKNOWN
    assert "does not describe the job" in str(result.reason)


@settings(max_examples=25)
@given(
    replicas=st.integers(1, 3),
    stages=st.integers(1, 4),
    chunks=st.integers(1, 2),
    rounds=st.integers(1, 3),
    spread=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1_000),
)
def test_a_random_job_has_the_simulators_slowdown(
    tmp_path_factory: pytest.TempPathFactory,
    replicas: int,
    stages: int,
    chunks: int,
    rounds: int,
    spread: float,
    seed: int,
) -> None:
    """Delays are 0, so the recorded steps are the replay too. Without differences S is exactly 1."""
    job = Job(
        replicas=replicas,
        stages=stages,
        chunks=chunks if stages > 1 else 1,
        microbatches=rounds * stages,
        steps=(1, 7),
        seconds=lambda of: usual(of) * (1 + spread * random.Random(repr((seed, of))).random()),
    )
    result = analysed(job, tmp_path_factory.mktemp("job"))
    assert result.replayed_ns == pytest.approx(result.step_ns, abs=2_000)
    assert result.ratio == pytest.approx(1.0 if spread == 0 else jobs.slowdown(job), rel=1e-5)
    if spread == 0:
        assert (result.cause, result.worker_share) == (SlowdownCause.NONE, None)


def test_collectives_that_begin_in_another_order_elsewhere_are_replayed_in_the_studys(tmp_path: Path) -> None:
    """Two ranks note their embedding's reduction after their gradients' one, as on streams of their own. Each recorded
    order then waits for another.
    """
    job = Job(replicas=2, stages=2, microbatches=2, steps=(1,), seconds=lambda of: usual(of) * (1 + 0.5 * chance(of)))
    rows = table(job)
    for row in rows:
        if row["optype"] == "embedding-grads-all-reduce" and row["rank"] in (job.rank(1, 0), job.rank(0, 1)):
            end = float(str(row["start_ts"])) + float(str(row["duration"]))
            row.update(start_ts=end + 1e-7, duration=1e-8)
    result = slowdown(whole_steps(read_table(jobs.write_csv(tmp_path / "table.csv", rows))).operations)
    assert result is not None
    assert result.ratio == pytest.approx(jobs.slowdown(job), rel=0.01)


def test_operations_that_wait_in_a_circle_are_not_replayed(tmp_path: Path) -> None:
    """The first stage runs its backward before its forward: each stage waits for the other."""
    job = Job(replicas=1, stages=2, microbatches=1, steps=(1,))
    operations = whole_steps(read_table(jobs.write_csv(tmp_path / "table.csv", table(job)))).operations
    kinds = list(operations.kinds)
    forward, backward = kinds.index("forward-compute"), kinds.index("backward-compute")
    swapped = operations.kind.copy()
    first = operations.stage == 0
    swapped[first & (operations.kind == forward)], swapped[first & (operations.kind == backward)] = backward, forward
    wrong = replace(operations, kind=swapped)
    assert operation_order(operations) is not None
    assert operation_order(wrong) is None
    result = slowdown(wrong)
    assert result is not None
    assert (result.cause, result.ratio, result.gain_ratio) == (SlowdownCause.UNKNOWN, None, None)


def test_a_run_without_a_table_has_no_slowdown() -> None:
    assert slowdown(None) is None
