"""A straggler whose host is the cause: the kernel's counts of its thread explain its lateness, or they name nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.analysis.lockstep import ENOUGH, lockstep
from tests.timeline.build import Row, timeline
from traincope.analysis import FindingKind, HostUsage, Stragglers, analyze
from traincope.events import Kind, Phase, Usage

MS = 1_000_000
STEP_NS = 100 * MS
LATE_MS = 30
"""Rank 1 works 90 ms in place of 60, in steps of 100 ms."""


def readings(per_step: Mapping[Usage, int]) -> Sequence[Row]:
    """A reading every ten steps of totals that grow by so much a step."""
    return [
        Row(kind=Kind.USAGE, start_ns=at, end_ns=at, name=usage, value=7 + growth * (at // STEP_NS))
        for at in range(0, ENOUGH * STEP_NS, 10 * STEP_NS)
        for usage, growth in per_step.items()
    ]


def usage_of(core_wait_ns: int, major_faults: int) -> Mapping[Usage, int]:
    return {Usage.CORE_WAIT: core_wait_ns, Usage.MAJOR_FAULTS: major_faults}


def analysed(also: Mapping[int, Sequence[Row]]) -> tuple[HostUsage | None, str, str]:
    """Usage, evidence and advice of the named straggler, rank 1."""
    ranks = lockstep([[60 * MS, 90 * MS, 60 * MS]] * ENOUGH, transfer_ns=10 * MS, also=also)
    analysis = analyze(timeline(*ranks))
    (straggler,) = analysis.stragglers.named
    (finding,) = (each for each in analysis.verdict if each.kind is FindingKind.STRAGGLER)
    assert (straggler.rank, straggler.late_ns) == (1, pytest.approx(LATE_MS * MS))
    return straggler.usage, finding.evidence, finding.advice


def test_waits_for_a_core_that_explain_the_lateness_are_its_cause() -> None:
    quiet = readings(usage_of(MS, 0))
    usage, evidence, advice = analysed({0: quiet, 1: readings(usage_of(26 * MS, 0)), 2: quiet})
    assert usage == HostUsage(
        core_wait_ns=pytest.approx(26 * MS),
        peers_core_wait_ns=pytest.approx(MS),
        major_faults=0,
        peers_major_faults=0,
    )
    assert "its thread waits 26.0 ms a step for a core, the others' 1.0 ms" in evidence
    assert "what else runs on its cores" in advice


def test_pages_from_a_disk_that_explain_the_lateness_are_its_cause() -> None:
    quiet = readings(usage_of(0, 2))
    _, evidence, advice = analysed({0: quiet, 1: readings(usage_of(0, 400)), 2: quiet})
    assert "its thread waits for 400 pages a step from a disk, the others' for 2" in evidence
    assert "Free memory on its host" in advice


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(usage_of(LATE_MS * MS // 2, 0), id="the peers wait for cores too"),
        pytest.param(usage_of(MS, 140), id="140 pages take 14 ms of the 30"),
    ],
)
def test_counts_that_explain_less_than_half_of_it_name_no_cause(own: Mapping[Usage, int]) -> None:
    quiet = readings(usage_of(MS, 0))
    usage, evidence, advice = analysed({0: quiet, 1: readings(own), 2: quiet})
    assert usage is not None
    assert "core," not in evidence
    assert "from a disk" not in evidence
    assert "Look for work that only this rank does" in advice


@pytest.mark.parametrize("with_readings", [(), (1,), (0, 2)])
def test_without_readings_of_both_sides_nothing_is_known(with_readings: tuple[int, ...]) -> None:
    usage, evidence, _ = analysed({rank: readings(usage_of(26 * MS, 900)) for rank in with_readings})
    assert usage is None
    assert "core," not in evidence


def test_waits_that_come_from_more_work_are_not_its_cause() -> None:
    """All threads wait as long as they run: the straggler runs 30 ms longer, so it waits 30 ms longer."""

    def half_a_core(cpu_ns: int) -> Sequence[Row]:
        return readings({**usage_of(cpu_ns, 0), Usage.CPU_TIME: cpu_ns})

    quiet = half_a_core(30 * MS)
    usage, evidence, _ = analysed({0: quiet, 1: half_a_core(60 * MS), 2: quiet})
    assert usage is not None
    assert (usage.cpu_ns, usage.peers_cpu_ns) == (pytest.approx(60 * MS), pytest.approx(30 * MS))
    assert "for a core" not in evidence


FEW = 46
"""Steps that are too few to name a rank by their signs: 9 blocks of 5, of which each speaks against rank 1."""


def few_steps(
    *, optimizer_ms: int = 10, cpu_ms: int = 30, of: Phase = Phase.OPTIMIZER, shorter: range = range(0)
) -> Stragglers:
    """Rank 1 works 30 ms longer, in the optimizer of all. `cpu_ms`: how much longer its thread runs. `shorter`: steps
    in which it works only 5 ms longer.
    """
    work = [[60 * MS, (65 if number in shorter else 90) * MS, 60 * MS] for number in range(FEW)]
    usual = readings({**usage_of(0, 0), Usage.CPU_TIME: 60 * MS})
    longer = readings({**usage_of((LATE_MS - cpu_ms) * MS, 0), Usage.CPU_TIME: (60 + cpu_ms) * MS})
    also = {0: usual, 1: longer, 2: usual}
    ranks = lockstep(work, transfer_ns=10 * MS, of=of, all_ns=optimizer_ms * MS, also=also)
    return analyze(timeline(*ranks)).stragglers


def test_in_few_steps_work_that_no_batch_changes_names_a_rank_if_its_cpu_time_agrees() -> None:
    """The optimizer takes 40 ms on rank 1, and 10 ms on the others, in each of 45 steps."""
    found = few_steps()
    (named,) = found.named
    assert (named.rank, named.confidence, named.cause) == (1, "medium", "optimizer")
    assert named.late_ns == pytest.approx(LATE_MS * MS)
    assert found.likely is None


@pytest.mark.parametrize(
    "found",
    [
        pytest.param({"cpu_ms": 10}, id="its thread ran 10 ms longer, and waited 20 ms for a core"),
        pytest.param({"optimizer_ms": 40}, id="70 ms are not twice 40 ms"),
        pytest.param({"of": Phase.FORWARD}, id="a batch may make a forward longer"),
        pytest.param({"shorter": range(6, 11)}, id="15 ms are not twice 10 ms in one block"),
    ],
)
def test_less_evidence_names_no_rank_in_few_steps(found: dict[str, Any]) -> None:
    result = few_steps(**found)
    assert result.named == ()
    assert result.likely is not None
