"""Memory by rank, measure and phase; leaks, and growth that is not a leak."""

from dataclasses import replace

import numpy as np
import pytest

from tests.timeline.build import Row, phase, rank, step, timeline
from traincope.analysis import Finding, FindingKind, analyze
from traincope.analysis.memory.growth import exhausted_at, grows, slope
from traincope.analysis.memory.uses import MemoryUse, memory
from traincope.analysis.verdict.findings import ordered
from traincope.events import NO_STEP, Kind, Phase
from traincope.store import RankRecords

MIB = 1 << 20
RNG = np.random.default_rng(3)


def look(num_bytes: int, at_ns: int, *, measure: str = "resident", after: Phase = Phase.NONE, at: int = NO_STEP) -> Row:
    return Row(kind=Kind.MEMORY, start_ns=at_ns, end_ns=at_ns, name=measure, phase=after, value=num_bytes, step=at)


def test_last_peak_and_the_median_after_each_phase() -> None:
    (use,) = memory(
        timeline(
            rank(
                2,
                step(0, 0, 100),
                look(10, 1, after=Phase.FORWARD),
                look(70, 2, after=Phase.BACKWARD),
                look(20, 3),
                look(12, 4, after=Phase.FORWARD),
                look(80, 5, after=Phase.BACKWARD),
                look(14, 6, after=Phase.FORWARD),
                look(30, 7),
            )
        )
    )
    assert use == MemoryUse(
        rank=2,
        measure="resident",
        last_bytes=30,
        peak_bytes=80,
        phases={"forward": 12, "backward": 75},
        growth_bytes_per_step=None,
        leak=None,
    )


def test_a_run_without_samples_has_no_memory() -> None:
    assert memory(timeline(rank(0, step(0, 0, 100)))) == ()


def grown(number: int, sizes: "list[int] | np.ndarray[tuple[int], np.dtype[np.int64]]") -> RankRecords:
    rows = [look(int(size), 10 * at, at=at) for at, size in enumerate(sizes)]
    busy = [step(0, 0, 100), phase(Phase.FORWARD, 0, 100)]
    return rank(number, *busy, *rows)


def test_memory_that_grows_with_every_step_is_a_leak_and_a_finding() -> None:
    """Rank 1 grows by 256 KiB in each of 120 steps from 100 MiB; rank 0 stays. The first quarter is left out."""
    leaking = [100 * MIB + at * MIB // 4 for at in range(120)]
    analysis = analyze(timeline(grown(0, [100 * MIB] * 120), grown(1, leaking)))
    still, leak = analysis.memory
    assert (still.growth_bytes_per_step, still.leak) == (0.0, False)
    assert (leak.growth_bytes_per_step, leak.leak) == (MIB / 4, True)
    (finding,) = analysis.verdict
    assert (finding.kind, finding.ranks) == ("memory_growth", (1,))
    assert finding.evidence == "resident memory grows steadily, on rank 1 by 25.0 MiB per 100 steps to 129.8 MiB"


def test_workers_that_keep_what_they_read_are_a_finding_of_their_own() -> None:
    """The workers of rank 1 grow by 1 MiB in each of 120 steps; its own memory stays."""
    rows = [
        look(size, 10 * at, measure=measure, at=at)
        for at in range(120)
        for measure, size in (("resident", 100 * MIB), ("loader workers", (300 + at) * MIB))
    ]
    leaking = rank(1, step(0, 0, 100), phase(Phase.FORWARD, 0, 100), *rows)
    (finding,) = analyze(timeline(grown(0, [100 * MIB] * 120), leaking)).verdict
    assert (finding.kind, finding.ranks) == ("memory_growth", (1,))
    assert finding.evidence == (
        "memory of the loader workers grows steadily, on rank 1 by 100.0 MiB per 100 steps to 419.0 MiB"
    )
    assert "Let the Dataset keep no sample" in finding.advice


def test_too_few_steps_have_no_slope() -> None:
    (use,) = memory(timeline(grown(0, [MIB * at for at in range(80)])))
    assert (use.growth_bytes_per_step, use.leak) == (None, None)


def test_all_ranks_that_grow_are_named_the_fastest_first() -> None:
    slow, fast = ([100 * MIB + at * each for at in range(120)] for each in (MIB // 4, MIB))
    (finding,) = analyze(timeline(grown(0, slow), grown(1, fast))).verdict
    assert finding.ranks == (0, 1)
    assert "on rank 1 by 100.0 MiB per 100 steps to 219.0 MiB, on rank 0 by 25.0 MiB per 100 steps" in finding.evidence


def test_the_slope_is_per_step_although_only_windows_have_samples() -> None:
    """Windows of 7 steps, of 70: the memory grows by 1 MiB per step, by 64 MiB between two windows."""
    steps = [step for step in range(1_000) if step % 70 < 7]
    rows = [look(100 * MIB + number * MIB, 10 * number, at=number) for number in steps]
    (use,) = memory(timeline(rank(0, step(0, 0, 100), *rows)))
    assert (use.growth_bytes_per_step, use.leak) == (MIB, True)


def test_the_step_of_exhaustion_counts_all_growing_ranks_of_a_host() -> None:
    """Ranks of 200 and 100 MiB grow by 2 and 1 MiB per step; the other holds 100 MiB. 1,000 MiB leave 600: 200 steps.

    With 120 samples each, the last one is of step 119.
    """
    records = [
        grown(number, [(last - 119 * each + at * each) * MIB for at in range(120)])
        for number, (last, each) in enumerate(((200, 2), (100, 1), (100, 0)))
    ]
    device = {"memory_bytes": 1_000 * MIB}
    of_host = [replace(each, info=replace(each.info, device=device)) for each in records]
    uses = memory(timeline(*of_host))
    assert [use.exhausted_at_step for use in uses] == [319, 319, None]
    assert "exhausted in 2.00 us, by step 319 at the latest" in analyze(timeline(*of_host)).verdict[0].evidence


def test_a_growth_that_leaves_the_memory_enough_for_a_month_is_no_finding() -> None:
    """It grows by 1 MiB per step of 1 s. 40 days are 3,456,000 steps."""
    rows = [look((100 + at) * MIB, at * 10**9, at=at) for at in range(120)]
    leaking = rank(0, step(0, 0, 100), phase(Phase.FORWARD, 0, 100), *rows)

    def verdict(days: int) -> set[str]:
        device = {"memory_bytes": (219 + days * 86_400) * MIB}
        return {
            each.kind for each in analyze(timeline(replace(leaking, info=replace(leaking.info, device=device)))).verdict
        }

    assert "memory_growth" in verdict(days=20)
    assert "memory_growth" not in verdict(days=40)


def test_memory_that_will_end_the_run_comes_before_all_losses() -> None:
    loss = Finding(kind=FindingKind.DATA_BOUND, confidence="high", evidence="", advice="", estimated_gain_ratio=0.9)
    growth = replace(loss, kind=FindingKind.MEMORY_GROWTH, confidence="medium", estimated_gain_ratio=None)
    assert ordered([loss, growth]) == (growth, loss)


def test_samples_of_a_light_run_suffice_if_they_span_many_steps() -> None:
    """One sample in 7 steps, 43 after the warm-up. 32 of consecutive steps may be warm-up."""
    rows = [look((100 + at) * MIB, 10 * at, at=at) for at in range(0, 400, 7)]
    (use,) = memory(timeline(rank(0, step(0, 0, 100), *rows)))
    assert use.leak
    (use,) = memory(timeline(grown(0, [(100 + at) * MIB for at in range(43)])))
    assert use.leak is None


def test_a_limit_that_is_reached_is_not_in_the_past() -> None:
    assert exhausted_at(9, held_bytes=11, bytes_per_step=1.0, limit_bytes=10) == 9
    assert exhausted_at(9, held_bytes=11, bytes_per_step=0.0, limit_bytes=10) is None


def test_a_rising_peak_is_not_a_leak() -> None:
    rows = [look(MIB * at, at, measure="peak resident", at=at) for at in range(200)]
    (use,) = memory(timeline(rank(0, step(0, 0, 1_000), *rows)))
    assert use.leak is None


@pytest.mark.parametrize(
    "settling",
    [
        100 * MIB + 50 * MIB * (1 - np.exp(-np.arange(400) / 60)),
        100 * MIB + RNG.normal(0, 5 * MIB, 400),
        100 * MIB + 40 * MIB * (np.arange(400) % 50) / 50,
        100 * MIB + np.arange(400) * 1024.0,
        100 * MIB + MIB * np.minimum(np.arange(400), 300.0),
        100 * MIB + 60 * MIB * (np.arange(400) > 200),
        100 * MIB + 25 * MIB * (np.arange(400) > 45) + 50 * MIB * (np.arange(400) > 360) + np.arange(400) * 16384.0,
    ],
    ids=["comes to rest", "noise", "saw", "too little", "stops", "jumps once", "jumps twice and creeps"],
)
def test_growth_that_ends_or_swings_or_is_small_is_not_a_leak(
    settling: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> None:
    assert not grows(np.arange(len(settling)), settling.astype(np.int64))


def test_outliers_do_not_move_the_slope() -> None:
    values = np.arange(100, dtype=np.int64) * 1_000
    values[RNG.choice(100, 25, replace=False)] = 10**9
    assert slope(np.arange(100), values) == pytest.approx(1_000, rel=0.3)
    assert slope(np.array([0]), np.array([7], dtype=np.int64)) == 0.0
