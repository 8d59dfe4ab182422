"""What ranks of one host lack together is one finding about the host: neither ranks nor transfers are blamed for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.analysis.lockstep import ENOUGH, lockstep
from tests.timeline.build import Row, timeline
from traincope.analysis import Analysis, Finding, FindingKind, HostShortage, ShortageCause, analyze
from traincope.analysis.verdict.findings import ordered
from traincope.analysis.verdict.losses.shared_hosts import host_findings, without_blame
from traincope.events import BUSY_THREAD, Kind, Phase, Usage

MS = 1_000_000
STEP_NS = 100 * MS
"""Ranks work 60 ms, and transfer 40 ms."""
OWN_CORE = {"allowed": [0, 1], "cores": 2, "quota": None}
BUSY = Row(kind=Kind.EVENT, start_ns=MS, end_ns=MS, name=BUSY_THREAD, group=7)
TELEMETRY = {"thread": "telemetry", "runs": "Telemetry.run", "of_ns": 10**9}
SAME_CORE = {"allowed": [0], "cores": 2, "quota": None}


def readings(per_step: Mapping[Usage, int]) -> Sequence[Row]:
    """A reading every ten steps of totals that grow by so much a step."""
    return [
        Row(kind=Kind.USAGE, start_ns=at, end_ns=at, name=usage, value=7 + growth * (at // STEP_NS))
        for at in range(0, ENOUGH * STEP_NS, 10 * STEP_NS)
        for usage, growth in per_step.items()
    ]


def usage(waits_ms: float, **more_ms: float) -> Mapping[Usage, int]:
    """A thread that runs 30 ms a step, alone in its process, on a host that idles 120 of 200 ms."""
    others = {Usage.PROCESS_CPU_TIME: 30.0, Usage.HOST_IDLE: 120.0} | {Usage[key]: ms for key, ms in more_ms.items()}
    counts = {Usage.CORE_WAIT: waits_ms, Usage.CPU_TIME: 30.0, Usage.MAJOR_FAULTS: 0.0, **others}
    return {key: round(ms * MS) for key, ms in counts.items()}


def analysed(
    counts: Sequence[Mapping[Usage, int]],
    limits: Sequence[Mapping[str, Any]],
    work_ms: Sequence[int] | None = None,
    *,
    of: Phase = Phase.FORWARD,
    all_ns: int = 0,
    threads: Mapping[int, float] | None = None,
    device: Mapping[str, Any] | None = None,
) -> Analysis:
    """`of`, `all_ns`: see `lockstep`. `threads`: rank -> part of the time in which its thread for telemetry runs."""
    busy = {rank: [BUSY] if rank in (threads or {}) else [] for rank in range(len(counts))}
    also = {rank: [*readings(counted), *busy[rank]] for rank, counted in enumerate(counts)}
    work_ns = [ms * MS for ms in work_ms or [60] * len(counts)]
    ranks = lockstep([work_ns] * ENOUGH, transfer_ns=STEP_NS - max(work_ns), of=of, all_ns=all_ns, also=also)
    ranks = [
        replace(
            rank,
            info=replace(rank.info, cpu_limits=dict(own), device=dict(device or rank.info.device)),
            details={7: {**TELEMETRY, "busy_ns": round(1e9 * (threads or {}).get(number, 0.0))}},
        )
        for number, (rank, own) in enumerate(zip(ranks, limits, strict=True))
    ]
    return analyze(timeline(*ranks))


def shortage(analysis: Analysis) -> HostShortage:
    (found,) = analysis.host_shortages
    return found


def finding(analysis: Analysis) -> Finding:
    return next(each for each in analysis.verdict if each.kind == FindingKind.HOST_SHORTAGE)


@pytest.mark.parametrize(
    ("counts", "limits", "cause", "evidence"),
    [
        pytest.param(
            [usage(45)] * 2,
            [SAME_CORE] * 2,
            ShortageCause.BOUND_CORES,
            "wait 45.0 % of the time for a core, 1.50 s per CPU second: they may only run on core 0 of its 2 cores",
            id="bound to one core",
        ),
        pytest.param(
            [usage(30)] * 3, [OWN_CORE] * 3, ShortageCause.CORES, "3 ranks run on 2 cores", id="3 ranks on 2 cores"
        ),
        pytest.param(
            [usage(30, THROTTLED=70)] * 2,
            [OWN_CORE | {"quota": 1.5}] * 2,
            ShortageCause.CPU_QUOTA,
            "the CPU quota of 1.5 cores is used up in 70.0 % of the time",
            id="a quota",
        ),
        pytest.param(
            [usage(30, HOST_IDLE=0)] * 2,
            [OWN_CORE] * 2,
            ShortageCause.OTHER_PROCESSES,
            "other processes keep 1.4 of its 2 cores busy, the ranks 0.6",
            id="another job on the host",
        ),
        pytest.param(
            [usage(30, PROCESS_CPU_TIME=95, HOST_IDLE=0)] * 2,
            [OWN_CORE] * 2,
            ShortageCause.OWN_THREADS,
            "the threads of the ranks keep 1.9 of 2 cores busy",
            id="threads of the ranks",
        ),
        pytest.param(
            [usage(30)] * 2, [{}] * 2, ShortageCause.UNKNOWN, "it is not known which threads", id="limits not recorded"
        ),
    ],
)
def test_ranks_that_wait_for_cores_together_lack_them_by_their_host(
    counts: Sequence[Mapping[Usage, int]], limits: Sequence[Mapping[str, Any]], cause: ShortageCause, evidence: str
) -> None:
    analysis = analysed(counts, limits)
    found, first, second = shortage(analysis), *analysis.verdict[:2]
    assert (found.cause, found.ranks) == (cause, tuple(range(len(counts))))
    assert (first.kind, first.ranks) == (FindingKind.HOST_SHORTAGE, ())
    assert evidence in first.evidence
    assert first.estimated_gain_ratio == pytest.approx(found.ratio)
    assert (second.kind, second.confidence, second.estimated_gain_ratio) == (
        FindingKind.EXPOSED_COMMUNICATION,
        "unknown",
        None,
    ), "a transfer of 40 % is not blamed"


def test_of_several_ranks_only_those_on_one_core_are_named() -> None:
    limits = [SAME_CORE, SAME_CORE, OWN_CORE]
    found = shortage(analysed([usage(45), usage(40), usage(6)], limits))
    assert (found.ranks, found.allowed, found.cause) == ((0, 1), (0,), ShortageCause.BOUND_CORES)


def test_a_rank_that_is_late_by_its_waits_for_a_shared_core_is_not_blamed() -> None:
    analysis = analysed([usage(20), usage(40)], [SAME_CORE] * 2, work_ms=[60, 80])
    assert [straggler.rank for straggler in analysis.stragglers.named] == [1]
    assert FindingKind.STRAGGLER not in {finding.kind for finding in analysis.verdict}
    assert analysis.verdict[0].kind is FindingKind.HOST_SHORTAGE


def test_a_rank_with_more_work_is_named_on_a_busy_host_too() -> None:
    """It runs 60 ms where the others run 30, and so it waits twice as long."""
    own = {**usage(60, HOST_IDLE=0), Usage.CPU_TIME: 60 * MS}
    analysis = analysed([usage(30, HOST_IDLE=0), own, usage(30, HOST_IDLE=0)], [OWN_CORE] * 3, work_ms=[40, 90, 40])
    first = analysis.verdict[0]
    assert (first.kind, first.ranks) == (FindingKind.STRAGGLER, (1,))


@pytest.mark.parametrize(
    ("workers_ms", "idle_ms", "limits", "is_full"),
    [
        pytest.param(60, 120, OWN_CORE, True, id="they and the ranks use 1.8 of 2 cores"),
        pytest.param(60, 120, OWN_CORE | {"quota": 2.2, "allowed": [0, 1, 2, 3]}, True, id="a quota"),
        pytest.param(60, 120, OWN_CORE | {"allowed": [0, 1, 2, 3]}, False, id="cores are free"),
        pytest.param(40, 20, OWN_CORE, True, id="other processes use the rest"),
        pytest.param(40, 120, OWN_CORE, False, id="0.6 cores are free"),
        pytest.param(0, 20, OWN_CORE, False, id="no workers"),
        pytest.param(60, 120, {}, False, id="limits not recorded"),
    ],
)
def test_more_loader_workers_are_advised_only_where_cores_are_free(
    workers_ms: int, idle_ms: int, limits: Mapping[str, Any], is_full: bool
) -> None:
    counts = usage(1, WORKERS_CPU_TIME=workers_ms, HOST_IDLE=idle_ms)
    analysis = analysed([counts] * 2, [limits] * 2, work_ms=[60, 60], of=Phase.DATA_WAIT, all_ns=30 * MS)
    (data,) = (finding for finding in analysis.verdict if finding.kind is FindingKind.DATA_BOUND)
    assert ("with the loader's workers, so more would not help" in data.evidence) == is_full
    assert ("more workers" in data.advice) != is_full
    assert data.gain_at_most == is_full
    if is_full:
        assert f"the cores of its host are busy, {workers_ms / 50:.1f} of 2" in data.evidence


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([usage(4)] * 2, id="short waits"),
        pytest.param([usage(40), usage(15)], id="one rank, much longer than the other"),
        pytest.param([{Usage.CORE_WAIT: 40 * MS, Usage.MAJOR_FAULTS: 0}] * 2, id="an older run, without CPU times"),
    ],
)
def test_nothing_is_a_shortage_of_the_host(counts: Sequence[Mapping[Usage, int]]) -> None:
    analysis = analysed(counts, [OWN_CORE] * 2)
    assert not analysis.host_shortages
    assert analysis.verdict[0].kind is FindingKind.EXPOSED_TRANSFER


@pytest.mark.parametrize(
    ("stalled_ms", "is_short"), [pytest.param(20, True, id="memory"), pytest.param(0, False, id="files read by mmap")]
)
def test_pages_from_a_disk_are_lack_of_memory_if_threads_stall_by_it(stalled_ms: int, is_short: bool) -> None:
    """120 pages a step take 12 ms of 100."""
    counts = {**usage(1, MEMORY_STALL=stalled_ms), Usage.MAJOR_FAULTS: 120}
    found = analysed([counts] * 2, [OWN_CORE] * 2).host_shortages
    assert [each.cause for each in found] == [ShortageCause.MEMORY] * is_short
    if is_short:
        assert (found[0].ratio, found[0].pages_per_second) == (pytest.approx(0.12), pytest.approx(1_200))


def test_a_host_comes_after_causes_of_their_own_and_before_what_it_may_explain() -> None:
    def finding(kind: FindingKind, gain: float | None, confidence: str = "medium") -> Finding:
        return Finding(kind=kind, confidence=confidence, evidence="", advice="", estimated_gain_ratio=gain)

    host = finding(FindingKind.HOST_SHORTAGE, 0.5, "high")
    saves, data = finding(FindingKind.CHECKPOINT_STALL, 0.2), finding(FindingKind.DATA_BOUND, 0.15)
    slow_data, unknown = finding(FindingKind.DATA_BOUND, 0.6), finding(FindingKind.UNATTRIBUTED, None)
    failed, small = finding(FindingKind.FAILED_RANK, None), finding(FindingKind.GC, 0.1)
    assert ordered([host, unknown, data, saves]) == (saves, host, data, unknown)
    assert ordered([host, slow_data, failed, small]) == (failed, slow_data, host, small)


def test_what_need_not_be_sent_is_reported_on_a_host_without_enough_cores() -> None:
    analysis = analysed([usage(30)] * 2, [SAME_CORE] * 2)
    (lack,) = analysis.host_shortages
    sent = Finding(
        kind=FindingKind.EXPOSED_TRANSFER, confidence="medium", evidence="", advice="", estimated_gain_ratio=0.2
    )
    avoidable = replace(sent, avoidable=True)
    ((_, unjudged), (_, kept)) = without_blame(iter([(0.2, sent), (0.2, avoidable)]), [lack])
    assert (unjudged.kind, unjudged.confidence) == (FindingKind.EXPOSED_COMMUNICATION, "unknown")
    assert kept == avoidable
    (host,) = (finding for _, finding in host_findings([lack], analysis.timeline))
    assert ordered([host, avoidable]) == (avoidable, host)
    unpriced = replace(avoidable, estimated_gain_ratio=None)
    assert ordered([host, unpriced]) == (unpriced, host)
    assert ordered([host, sent]) == (host, sent)


def test_on_a_full_host_a_rank_that_waits_longer_than_it_runs_lacks_cores_beside_one_that_waits_twice_as_long() -> None:
    """Both run 30 ms a step. On a host with idle cores, the second alone is late, for a reason of its own."""
    unequal = [(usage(32, HOST_IDLE=idle), usage(70, HOST_IDLE=idle)) for idle in (0, 120)]
    full, idle = (analysed(counts, [OWN_CORE] * 2) for counts in unequal)
    assert (shortage(full).ranks, shortage(full).cause) == ((0, 1), ShortageCause.OTHER_PROCESSES)
    assert idle.host_shortages == ()


def test_a_rank_that_hardly_waits_is_not_as_short_as_one_that_cannot_run() -> None:
    """Rank 1 lacks a core for a reason of its own; rank 0 mostly waits for rank 1, and runs 6 ms a step."""
    blocked = {**usage(7, HOST_IDLE=0), Usage.CPU_TIME: 6 * MS}
    assert analysed([blocked, usage(60, HOST_IDLE=0)], [OWN_CORE] * 2).host_shortages == ()


def test_loader_workers_that_keep_most_of_the_busy_cores_busy_decide_the_advice() -> None:
    finding = analysed([usage(30, HOST_IDLE=0, WORKERS_CPU_TIME=70)] * 2, [OWN_CORE] * 2).verdict[0]
    assert finding.kind == FindingKind.HOST_SHORTAGE
    assert "1.4 of them DataLoader workers" in finding.evidence
    assert "one thread" in finding.advice


def test_threads_of_python_that_compute_on_all_ranks_are_named_with_what_the_host_lacks() -> None:
    lacking = analysed([usage(30)] * 2, [SAME_CORE] * 2, threads={0: 0.8, 1: 0.9})
    evidence = finding(lacking).evidence
    assert "its thread telemetry (Telemetry.run) runs or waits for a core 90.0 % of the time" in evidence
    assert finding(lacking).advice.startswith("Do the work of that thread in another process")
    assert "Bind each rank" in finding(lacking).advice
    for threads in ({0: 0.8}, {0: 0.8, 1: 0.4}):
        assert "telemetry" not in finding(analysed([usage(30)] * 2, [SAME_CORE] * 2, threads=threads)).evidence


def test_ranks_that_neither_run_nor_lack_a_core_beside_a_busy_thread_lack_the_interpreter() -> None:
    """They run 30 of their 60 ms, and wait 2 ms for a core, in steps of 100 ms."""
    stopped = analysed([usage(2)] * 2, [OWN_CORE] * 2, threads={0: 0.9, 1: 0.9})
    assert (shortage(stopped).cause, shortage(stopped).ratio) == (ShortageCause.INTERPRETER, pytest.approx(0.28))
    assert finding(stopped).evidence.startswith(
        "the training threads of all ranks of host host-boot stand still 28.0 % of the time: in their compute they "
        "neither run nor wait for a core; on each of them, its thread telemetry (Telemetry.run)"
    )
    assert analysed([usage(2)] * 2, [OWN_CORE] * 2, threads={0: 0.9}).host_shortages == ()
    assert analysed([usage(2, CPU_TIME=58)] * 2, [OWN_CORE] * 2, threads={0: 0.9, 1: 0.9}).host_shortages == ()


def test_a_training_thread_that_waits_for_other_threads_or_a_gpu_does_not_lack_the_interpreter() -> None:
    """A step of 100 ms: the training thread runs 30, telemetry 90, and threads that compute with it 50."""
    beside = {0: 0.9, 1: 0.9}
    assert analysed([usage(2, PROCESS_CPU_TIME=170)] * 2, [OWN_CORE] * 2, threads=beside).host_shortages == ()
    assert analysed([usage(2)] * 2, [OWN_CORE] * 2, threads=beside, device={"count": 1}).host_shortages == ()
    assert shortage(analysed([usage(2, PROCESS_CPU_TIME=120)] * 2, [OWN_CORE] * 2, threads=beside)).ratio > 0
