"""Uses of a rank's memory, by readings made by hand: of a GPU, and of a process."""

import pytest

from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis.memory.split import MemorySplit, RankSplits, memory_splits
from traincope.events import HELD, Kind, Phase


def reading(at_ns: int, phase: Phase, totals: dict[str, int], held: tuple[int, int, int, int], *, at: int) -> list[Row]:
    """The measures of one instant. `held`: parameters, gradients, optimizer state, communication buffers."""
    measured = totals | dict(zip(HELD, held, strict=True))
    return [
        Row(kind=Kind.MEMORY, start_ns=at_ns, end_ns=at_ns, name=str(name), phase=phase, value=value, step=at)
        for name, value in measured.items()
    ]


def gpu(
    at_ns: int, phase: Phase, allocated: int, reserved: int, held: tuple[int, int, int, int], *, at: int
) -> list[Row]:
    return reading(at_ns, phase, {"allocated": allocated, "reserved": reserved}, held, at=at)


BETWEEN, FULL = (100, 0, 200, 10), (100, 100, 200, 10)


def of(*readings: list[Row], ending: str = "clean") -> RankSplits:
    rows = [row for each in readings for row in each]
    (splits,) = memory_splits(timeline(rank(3, step(0, 0, 100), *rows, ending=ending)))
    return splits


def test_activations_are_what_no_step_boundary_has() -> None:
    """Between steps 330 of 310 + 20 are live: 20 are unknown. After forward 830: 500 more are activations."""
    splits = of(
        gpu(10, Phase.NONE, 330, 900, BETWEEN, at=1),
        gpu(20, Phase.FORWARD, 830, 900, BETWEEN, at=1),
        gpu(30, Phase.BACKWARD, 470, 900, FULL, at=1),
        gpu(40, Phase.NONE, 330, 900, BETWEEN, at=2),
    )
    assert splits.peak == MemorySplit(
        rank=3,
        step=1,
        phase="forward",
        measure="reserved",
        total_bytes=900,
        parameters_bytes=100,
        gradients_bytes=0,
        optimizer_bytes=200,
        buffers_bytes=10,
        activations_bytes=500,
        fragmentation_bytes=70,
        unknown_bytes=20,
        reason=None,
    )
    assert splits.early == {
        "parameters": 100,
        "gradients": 100,
        "optimizer state": 200,
        "communication buffers": 10,
        "activations": 500,
        "fragmentation": 570,
        "unknown": 20,
    }
    assert sum(splits.last.parts.values()) == splits.last.total_bytes == 900


def test_a_failed_rank_s_last_reading_is_in_a_step() -> None:
    """Its other tensors are activations, although no phase had ended."""
    splits = of(
        gpu(10, Phase.NONE, 330, 900, BETWEEN, at=1),
        gpu(20, Phase.NONE, 880, 900, BETWEEN, at=1),
        ending="OutOfMemoryError",
    )
    assert (splits.last.activations_bytes, splits.last.unknown_bytes) == (550, 20)


def test_a_process_has_no_activations() -> None:
    splits = of(reading(10, Phase.FORWARD, {"resident": 1_000, "peak resident": 2_000}, FULL, at=0))
    split = splits.peak
    assert (split.total_bytes, split.unknown_bytes) == (1_000, 590)
    assert split.activations_bytes is split.fragmentation_bytes is None
    assert split.reason is not None
    assert splits.early == {}


@pytest.mark.parametrize("totals", [{"resident": 400}, {"allocated": 400, "reserved": 900}])
def test_tensors_larger_than_the_total_leave_no_unknown_part(totals: dict[str, int]) -> None:
    split = of(reading(10, Phase.NONE, totals, FULL, at=0)).peak
    assert split.unknown_bytes is split.activations_bytes is None
    assert split.reason is not None
    assert "larger than the total" in split.reason


def test_a_run_of_an_older_recorder_has_no_split() -> None:
    rows = [Row(kind=Kind.MEMORY, start_ns=1, end_ns=1, name="resident", value=9)]
    assert memory_splits(timeline(rank(0, step(0, 0, 100), *rows))) == ()
