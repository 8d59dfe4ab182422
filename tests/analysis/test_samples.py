"""Series of what was looked at once a step."""

import math
import struct

from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis import logged_samples, memory_samples
from traincope.events import NO_STEP, Kind, Phase


def look(num_bytes: int, *, at: int, measure: str = "resident", after: Phase = Phase.NONE) -> Row:
    return Row(
        kind=Kind.MEMORY, start_ns=10 * at + 5, end_ns=10 * at + 5, name=measure, phase=after, step=at, value=num_bytes
    )


def logged(name: str, value: float, *, at: int) -> Row:
    bits = struct.unpack("<q", struct.pack("<d", value))[0]
    return Row(kind=Kind.SCALAR, start_ns=10 * at, end_ns=10 * at, name=name, step=at, value=bits)


def test_memory_is_what_was_there_when_a_step_was_over() -> None:
    """Looks after a phase, and outside of steps, are none of the series."""
    rows = [look(7, at=0), look(99, at=1, after=Phase.FORWARD), look(8, at=1), look(5, at=NO_STEP)]
    (one,) = memory_samples(timeline(rank(3, step(0, 0, 10), *rows)))
    assert (one.rank, one.name, one.steps.tolist(), one.values.tolist()) == (3, "resident", [0, 1], [7.0, 8.0])


def test_every_rank_and_measure_has_its_own() -> None:
    line = timeline(
        rank(0, look(1, at=0), look(2, at=0, measure="peak resident")), rank(1, look(3, at=0)), world_size=2
    )
    assert [(one.rank, one.name, one.values.tolist()) for one in memory_samples(line)] == [
        (0, "resident", [1.0]),
        (0, "peak resident", [2.0]),
        (1, "resident", [3.0]),
    ]


def test_logged_values_are_floats_also_those_that_are_no_number() -> None:
    rows = [logged("loss", 2.5, at=0), logged("loss", math.inf, at=1), logged("loss", 0.5, at=2)]
    (one,) = logged_samples(timeline(rank(0, *rows)))
    assert (one.name, one.steps.tolist(), one.values.tolist()) == ("loss", [0, 1, 2], [2.5, math.inf, 0.5])


def test_what_is_read_of_experts_is_no_series() -> None:
    rows = [logged("expert_tokens[0.1]", 5, at=0), logged("expert_padding", 1, at=0), logged("expert_rate", 2, at=0)]
    assert [one.name for one in logged_samples(timeline(rank(0, *rows)))] == ["expert_rate"]
