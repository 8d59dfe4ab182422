"""Series of values sampled once per step."""

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


def test_memory_is_sampled_at_the_end_of_a_step() -> None:
    """Samples after a phase, and outside of steps, are not part of the series."""
    rows = [look(7, at=0), look(99, at=1, after=Phase.FORWARD), look(8, at=1), look(5, at=NO_STEP)]
    (samples,) = memory_samples(timeline(rank(3, step(0, 0, 10), *rows)))
    assert (samples.rank, samples.name, samples.steps.tolist(), samples.values.tolist()) == (
        3,
        "resident",
        [0, 1],
        [7.0, 8.0],
    )


def test_every_rank_and_measure_has_its_own_series() -> None:
    line = timeline(
        rank(0, look(1, at=0), look(2, at=0, measure="peak resident")), rank(1, look(3, at=0)), world_size=2
    )
    assert [(samples.rank, samples.name, samples.values.tolist()) for samples in memory_samples(line)] == [
        (0, "resident", [1.0]),
        (0, "peak resident", [2.0]),
        (1, "resident", [3.0]),
    ]


def test_logged_values_are_floats_including_infinity() -> None:
    rows = [logged("loss", 2.5, at=0), logged("loss", math.inf, at=1), logged("loss", 0.5, at=2)]
    (samples,) = logged_samples(timeline(rank(0, *rows)))
    assert (samples.name, samples.steps.tolist(), samples.values.tolist()) == ("loss", [0, 1, 2], [2.5, math.inf, 0.5])


def test_expert_loads_are_not_a_series() -> None:
    rows = [logged("expert_tokens[0.1]", 5, at=0), logged("expert_padding", 1, at=0), logged("expert_rate", 2, at=0)]
    assert [samples.name for samples in logged_samples(timeline(rank(0, *rows)))] == ["expert_rate"]
