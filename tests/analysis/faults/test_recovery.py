"""The checkpoint to restart from, and the command that takes a host out of its cluster."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis.faults.marks import marks
from traincope.analysis.faults.recovery import restart_point, take_out
from traincope.events import CHECKPOINT_FAILED, CHECKPOINT_SAVED, NO_STEP, OPEN, Kind, Phase
from traincope.store import RankRecords
from traincope.topology import ClusterNode, Scheduler

STEP_NS = 1_000
NUM_STEPS = 6
STEPS = [step(at, at * STEP_NS, (at + 1) * STEP_NS) for at in range(NUM_STEPS)]


def stall(action: str, at: int, *, complete: bool = True, outside: bool = False) -> Row:
    """A checkpoint at the end of a step, or in the next one but not recorded as part of it."""
    begin = at * STEP_NS + 900 if not outside else (at + 1) * STEP_NS + 10
    return Row(
        kind=Kind.PHASE,
        phase=Phase.CHECKPOINT_STALL,
        start_ns=begin,
        end_ns=begin + 50 if complete else OPEN,
        name=f"{action} checkpoint",
        step=NO_STEP if outside else at,
    )


def event(name: str, at: int) -> Row:
    at_ns = at * STEP_NS + 500
    return Row(kind=Kind.EVENT, start_ns=at_ns, end_ns=at_ns, name=name, group=0, step=at)


def restart(*rows_of_ranks: list[Row], before_ns: int | None = None) -> str | None:
    made = timeline(*(rank(number, *STEPS, *rows) for number, rows in enumerate(rows_of_ranks)))
    return restart_point(made, marks(made), before_ns=before_ns)


@pytest.mark.parametrize(
    ("rows", "point"),
    [
        ([], None),
        ([stall("load", 0)], "the checkpoint that this attempt loaded"),
        ([stall("load", 0), stall("save", 1), stall("save", 3)], "the checkpoint of step 3"),
        ([stall("save", 1), stall("save", 3, complete=False)], "the checkpoint of step 1"),
        ([stall("save", 2, outside=True)], "the checkpoint of step 2"),
        ([stall("async_save", 1), stall("async_save", 3)], None),
        ([stall("async_save", 1), event(CHECKPOINT_SAVED, 2), stall("async_save", 3)], "the checkpoint of step 1"),
        ([stall("async_save", 1), event(CHECKPOINT_FAILED, 2)], None),
        ([stall("async_save", 1), stall("async_save", 2), event(CHECKPOINT_SAVED, 4)], None),
        (
            [stall("async_save", 1), stall("async_save", 2), event(CHECKPOINT_SAVED, 4), event(CHECKPOINT_SAVED, 5)],
            "the checkpoint of step 2",
        ),
        ([stall("async_save", 1), event(CHECKPOINT_FAILED, 2), stall("save", 3)], "the checkpoint of step 3"),
    ],
)
def test_the_last_complete_checkpoint_is_the_one_to_restart_from(rows: list[Row], point: str | None) -> None:
    assert restart(rows) == point
    assert restart(rows, rows) == point


def test_a_checkpoint_is_complete_when_all_ranks_that_save_have_saved() -> None:
    both, one = [stall("save", 1), stall("save", 3)], [stall("save", 1)]
    assert restart(both, one) == "the checkpoint of step 1"
    assert restart(both, []) == "the checkpoint of step 3"
    saved = [stall("async_save", 1), event(CHECKPOINT_SAVED, 2)]
    assert restart(saved, [stall("async_save", 1)]) is None


def test_a_later_checkpoint_does_not_count() -> None:
    """A checkpoint saved after a mismatch holds its result."""
    assert restart([stall("save", 1), stall("save", 3)], before_ns=2 * STEP_NS) == "the checkpoint of step 1"


def on(number: int, name: str, scheduler: Scheduler = Scheduler.SLURM) -> RankRecords:
    records = rank(number, *STEPS)
    return replace(records, info=replace(records.info, node=ClusterNode(scheduler=scheduler, name=name)))


def test_the_command_has_the_name_by_which_the_scheduler_knows_the_host() -> None:
    slurm = timeline(on(0, "n17"), on(1, "n17"), on(2, "n18"), rank(3, *STEPS))
    assert take_out(slurm, [0, 1]) == "scontrol update nodename=n17 state=drain reason=traincope"
    assert take_out(slurm, [0, 2]) is None
    assert take_out(slurm, [3]) is None
    assert take_out(slurm, []) is None
    kubernetes = timeline(on(0, "gpu-pool-3", Scheduler.KUBERNETES), rank(1, *STEPS))
    assert take_out(kubernetes, [0]) == "kubectl cordon gpu-pool-3"
