"""A timeline through all analyses, in the order they need each other."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.bubble import (
    Bubble,
    Idle,
    StageBubble,
    measured_transfers,
    replay_idle,
    stage_transfers,
    theory,
    usual_work_ns,
)
from traincope.analysis.call_sites import RankCalls, rank_calls
from traincope.analysis.comm import AxisOperation, communication
from traincope.analysis.coverage import LeftOut, left_out
from traincope.analysis.critical_path import CriticalPath, critical_path, track
from traincope.analysis.device_stalls import DeviceStall, device_stalls
from traincope.analysis.endings import endings
from traincope.analysis.experts import ExpertLoads, expert_loads
from traincope.analysis.fault_stream import fault_stream
from traincope.analysis.faults import Fault
from traincope.analysis.findings import Finding
from traincope.analysis.goodput import Goodput, goodput
from traincope.analysis.gpu_partition import GpuPartition, gpu_partition
from traincope.analysis.group_waits import GroupWait, group_waits, rank_waits
from traincope.analysis.host import cut
from traincope.analysis.kernels import Kernels, kernels
from traincope.analysis.ledger import Ledger, RankLedger, assemble, rank_ledger
from traincope.analysis.memory import MemoryUse, memory
from traincope.analysis.pipeline import (
    NO_WINDOW,
    ReplicaSteps,
    by_number,
    one_clock,
    replica_steps,
    step_timetable,
    window_ends,
)
from traincope.analysis.releases import releases
from traincope.analysis.roots import Root, course, jitter_roots
from traincope.analysis.stalls import Standstill, split_stalls, standstills
from traincope.analysis.stragglers import Stragglers, last_to_arrive, stragglers
from traincope.analysis.transfers import Transfers, transfers
from traincope.analysis.utilization import Utilization, utilization
from traincope.analysis.verdict import verdict
from traincope.events import Kind
from traincope.timeline import Instances, Timeline, match_instances


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that is said about a run. Absent evidence is None."""

    timeline: Timeline
    ledger: Ledger
    comm: tuple[AxisOperation, ...]
    bubble: Bubble | None
    """None: no pipeline."""
    stragglers: Stragglers
    jitter_roots: tuple[Root, ...] = ()
    """Ranks whose own delays were their pipelines' jitter, the largest first."""
    critical_path: CriticalPath | None = None
    """None: no step counts, or the timeline is a part of a run."""
    utilization: Utilization
    faults: tuple[Fault, ...] = ()
    """By time; marks (checkpoints, evaluations, events) among them."""
    group_waits: tuple[GroupWait, ...] = ()
    """Of the groups in which a rank waited."""
    calls: tuple[RankCalls, ...] = ()
    """What each rank called from where; none, where the timeline is a part of a run."""
    memory: tuple[MemoryUse, ...] = ()
    experts: ExpertLoads | None = None
    """None: the training logged nothing of experts."""
    goodput: Goodput | None = None
    """None: no step was begun."""
    device_stalls: tuple[DeviceStall, ...] | None = None
    """None: nobody computed on a GPU, and the ledger has all there is."""
    kernels: Kernels | None = None
    """None: no kernel trace was recorded or imported."""
    gpu_partition: tuple[GpuPartition, ...] = ()
    """Of every GPU in a kernel trace."""
    verdict: tuple[Finding, ...]

    @property
    def median_step_ns(self) -> int | None:
        """Median wall time of a counted step, over ranks and steps."""
        walls = [rank.wall_ns[rank.counted] for rank in self.ledger.ranks]
        joined = np.concatenate(walls) if walls else np.empty(0)
        return round(float(np.median(joined))) if len(joined) else None


def analyze(timeline: Timeline, *, out: LeftOut | None = None) -> Analysis:
    """Where the time of the run went. Pure: nothing is read but the timeline.

    Rank by rank, each reduced to its sums before the next is cut: a rank's pieces are as large as
    its records. `out`: the steps that enter no sum, where the timeline is a part of a run and cannot tell; then
    no critical path is looked for, which a running job has no time for.
    """
    whole = out is None
    out = left_out(timeline) if out is None else out
    instances = match_instances(timeline)
    last = last_to_arrive(instances)
    wire = transfers(timeline, instances)
    steps, idle = _replayed(replica_steps(timeline), instances, wire)
    pipelined = any((rank.main["kind"] == Kind.ACTION).any() for rank in timeline.ranks)
    in_pipeline = {rank for one in steps if one_clock(timeline, one) for rank in one.ranks}
    stood_still = {}
    waited = {}
    courses = {}
    tracks = {}
    calls = []
    ledgers = []
    for rank in timeline.ranks:
        ends = window_ends(rank, steps)
        pieces = cut(rank, window_ends=ends[ends != NO_WINDOW])
        split = split_stalls(rank, pieces, instances=instances)
        own = rank_ledger(
            rank,
            pieces,
            split,
            window_ends=ends,
            idle=idle[rank.rank],
            pipelined=pipelined,
            excluded=out.numbers,
        )
        stood_still[rank.rank] = standstills(pieces, split, counted=own.counted, last=last)
        waited[rank.rank] = rank_waits(pieces, split, counted=own.counted, instances=instances)
        if rank.rank in in_pipeline:
            courses[rank.rank] = course(pieces, split, instances=instances)
        if whole:
            released = releases(rank, pieces, split, instances=instances, wire=wire, last=last)
            tracks[rank.rank] = track(pieces, split, released)
            calls.append(rank_calls(rank, pieces, split, counted=own.counted, instances=instances, wire=wire))
        ledgers.append(own)
    ledger = assemble(tuple(ledgers), left_out=out)
    roots, path = jitter_roots(ledger, courses), critical_path(timeline, ledger, tracks) if whole else None
    found = _analysis(timeline, ledger, stood_still, steps=steps, roots=roots, instances=instances, wire=wire)
    waits = group_waits(timeline, waited)
    return replace(found, critical_path=path, group_waits=waits, calls=tuple(calls))


def _analysis(
    timeline: Timeline,
    ledger: Ledger,
    stood_still: Mapping[int, tuple[Standstill, ...]],
    *,
    steps: tuple[ReplicaSteps, ...],
    roots: tuple[Root, ...],
    instances: Instances,
    wire: Transfers,
) -> Analysis:
    comm = communication(instances, stood_still, wire=wire, ledger=ledger)
    excluded = frozenset((*ledger.excluded_steps, *ledger.dropped_steps, *ledger.unwatched_steps))
    counted = tuple(kept for one in steps if (kept := one.without(excluded)) is not None)
    bubble = _bubble(timeline, ledger, counted)
    late = stragglers(timeline, ledger, stood_still)
    faults, used = fault_stream(timeline, ledger, endings(timeline)), memory(timeline)
    experts, job, gpus = expert_loads(timeline), goodput(timeline), gpu_partition(timeline)
    return Analysis(
        timeline=timeline,
        ledger=ledger,
        comm=comm,
        bubble=bubble,
        stragglers=late,
        jitter_roots=roots,
        utilization=utilization(timeline, ledger, job),
        faults=faults,
        memory=used,
        experts=experts,
        goodput=job,
        device_stalls=device_stalls(timeline, ledger),
        kernels=kernels(timeline),
        gpu_partition=gpus,
        verdict=verdict(
            timeline, ledger, bubble, comm, late, roots, faults=faults, memory=used, experts=experts, gpus=gpus
        ),
    )


def _replayed(
    steps: tuple[ReplicaSteps, ...], instances: Instances, wire: Transfers
) -> tuple[tuple[ReplicaSteps, ...], Mapping[int, list[Idle]]]:
    """The steps that can be replayed, and of each rank what the replays say of them."""
    measured = measured_transfers(instances, wire) if steps else {}
    replayed = []
    idle: dict[int, list[Idle]] = defaultdict(list)
    for one in steps:
        said = replay_idle(one, stage_transfers(one, measured))
        if said:
            replayed.append(one)
        for rank, replays in said.items():
            idle[rank].append(replays)
    return tuple(replayed), idle


def _bubble(timeline: Timeline, ledger: Ledger, steps: tuple[ReplicaSteps, ...]) -> Bubble | None:
    """Per stage from the ledger; theory and schedule from the last step of the last replica."""
    if not steps:
        return None
    ranks_of: dict[tuple[int, ...], set[int]] = {}
    for one in steps:
        for rank, order in one.replica.orders.items():
            ranks_of.setdefault(tuple(sorted({action.stage for action in order})), set()).add(rank)
    newest = max((one for one in steps if one.ranks == steps[-1].ranks), key=lambda one: int(one.numbers[-1]))
    expected, shown = theory(newest.last()), _median_step(ledger, newest)
    return Bubble(
        schedule=expected.schedule,
        num_stages=len(newest.replica.stages),
        num_microbatches=expected.num_microbatches,
        chunks=expected.chunks,
        stages=tuple(_stage(ledger, steps, stages, ranks) for stages, ranks in sorted(ranks_of.items())),
        theory_ratio=expected.formula_ratio,
        replay_ratio=expected.replay_ratio,
        one_clock=all(one_clock(timeline, one) for one in steps),
        step=shown,
        timetable=step_timetable(timeline, newest, shown) if one_clock(timeline, newest) else None,
    )


def _median_step(ledger: Ledger, steps: ReplicaSteps) -> int:
    """Of an even number the shorter of the two in the middle."""
    (first,) = (rank for rank in ledger.ranks if rank.rank == steps.ranks[0])
    wall = by_number(steps.numbers, first.numbers, first.wall_ns, missing=0)
    order = np.argsort(wall, kind="stable")
    return int(steps.numbers[order[(len(order) - 1) // 2]])


def _stage(ledger: Ledger, steps: tuple[ReplicaSteps, ...], stages: tuple[int, ...], ranks: set[int]) -> StageBubble:
    own = [rank for rank in ledger.ranks if rank.rank in ranks]
    work_ns = {stage: usual_work_ns(steps, stage) for stage in stages}

    def total(part: str) -> int:
        return sum(rank.total(f"bubble.{part}") or 0 for rank in own)

    return StageBubble(
        stage=stages[0],
        others=stages[1:],
        slowest=max(stages, key=lambda stage: work_ns[stage]),
        ranks=tuple(sorted(ranks)),
        schedule_ns=total("schedule"),
        imbalance_ns=total("imbalance"),
        jitter_ns=total("jitter"),
        wall_ns=sum(_replayed_ns(rank, steps) for rank in own),
    )


def _replayed_ns(rank: RankLedger, steps: tuple[ReplicaSteps, ...]) -> int:
    """Wall time of its steps that are among these."""
    numbers = np.concatenate([one.numbers for one in steps if rank.rank in one.ranks])
    return int(rank.wall_ns[np.isin(rank.numbers, numbers)].sum())
