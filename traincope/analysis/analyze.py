"""All analyses of a timeline, in the order of their dependencies."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from traincope.analysis.attribution.releases import releases
from traincope.analysis.attribution.stalls import StallTotal, sum_stalls
from traincope.analysis.attribution.terms import NOT_MEASURED
from traincope.analysis.communication.axis_operations import AxisOperation, communication
from traincope.analysis.communication.call_sites import RankCalls, rank_calls
from traincope.analysis.communication.group_waits import GroupWait, group_waits, rank_waits
from traincope.analysis.communication.job_activity import JobActivity, is_job_of_a_workflow, job_activity
from traincope.analysis.communication.rank_time import Activities, activities
from traincope.analysis.context import Context
from traincope.analysis.critical_path import CriticalPath, critical_path, track
from traincope.analysis.efficiency.background_saves import BackgroundSaves, background_saves
from traincope.analysis.efficiency.energy import OF_A_PART, Energy, energy
from traincope.analysis.efficiency.experts import ExpertLoads, expert_loads
from traincope.analysis.efficiency.goodput import Goodput, all_attempts, goodput
from traincope.analysis.efficiency.peaks import memory_bandwidth
from traincope.analysis.efficiency.rollouts import Rollouts, rollouts
from traincope.analysis.efficiency.utilization import Utilization, utilization
from traincope.analysis.faults.anomalies.corruption import StateChecks, state_checks
from traincope.analysis.faults.anomalies.data_order import DataOrder, data_order
from traincope.analysis.faults.anomalies.fed_data import fed_data
from traincope.analysis.faults.endings import endings
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.hangs.hangs import hangs, run_end_ns
from traincope.analysis.faults.hangs.noticed import stops_that_ended
from traincope.analysis.faults.history import training_step_offset, with_history
from traincope.analysis.faults.shortages import OutOfMemory, shortages
from traincope.analysis.faults.slow_code import SampledWindow, slow_code
from traincope.analysis.faults.stream import fault_stream
from traincope.analysis.kernels.gpu_partition import GpuPartition, gpu_partition
from traincope.analysis.kernels.kernels import Kernels, kernels
from traincope.analysis.kernels.queue_length import QueueLength, queue_lengths
from traincope.analysis.kernels.shapes_evidence import shapes_evidence
from traincope.analysis.kernels.unfused import Unfused, unfused
from traincope.analysis.ledger.coverage import ExcludedSteps, find_excluded_steps, recorder_overhead
from traincope.analysis.ledger.device_stalls import DeviceStall, device_stalls, why_on_host
from traincope.analysis.ledger.hidden_waits import host_hidden_waits
from traincope.analysis.ledger.host_shortages import HostShortage, host_shortages
from traincope.analysis.ledger.ledger import Ledger, RankLedger, assemble, rank_ledger
from traincope.analysis.ledger.run_ahead import RunAhead, run_ahead, unmarked_terms
from traincope.analysis.ledger.sampling import NOT_SAMPLED, Sampling, sampling
from traincope.analysis.memory.census import GrownTensors, grown_tensors
from traincope.analysis.memory.snapshots import RankSnapshot, rank_snapshots
from traincope.analysis.memory.split import RankSplits, memory_splits
from traincope.analysis.memory.uses import MemoryUse, memory
from traincope.analysis.pipeline.bubble import (
    Bubble,
    Idle,
    StageBubble,
    measured_transfers,
    replay_idle,
    stage_transfers,
    theory,
    unclear_steps,
    usual_work_ns,
)
from traincope.analysis.pipeline.replicas import (
    NO_WINDOW,
    ReplicaSteps,
    by_number,
    one_clock,
    replica_steps,
    step_timetable,
    window_ends,
)
from traincope.analysis.reliability.reliability import Reliability, reliability
from traincope.analysis.replaying.caught_up import with_prices
from traincope.analysis.replaying.moves import Moves
from traincope.analysis.replaying.pipeline_change import Measured, recorded_pipeline
from traincope.analysis.replaying.prices import MAX_RECORDS, Prices
from traincope.analysis.replaying.recorded import ReplayedSteps, StepMoves, last_steps
from traincope.analysis.stragglers.late_ranks import LateRanks, late_ranks
from traincope.analysis.stragglers.roots import Root, jitter_roots, wait_spans
from traincope.analysis.stragglers.slowdown import Slowdown, slowdown
from traincope.analysis.stragglers.stragglers import Stragglers, stragglers
from traincope.analysis.verdict.findings import Finding
from traincope.analysis.verdict.verdict import verdict
from traincope.errors import UsageError
from traincope.events import Kind
from traincope.timeline import Instances, Timeline
from traincope.timeline.device.traced import TracedGpu, traced_gpus
from traincope.timeline.device.works import has_launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Results of all analyses of a run. A result without evidence is None."""

    context: Context
    """The timeline, and the results that its analyses share."""
    began_ns: int
    """Instant of the job's first record, over all attempts that can be read; of a run without records, its start."""
    ledger: Ledger
    comm: tuple[AxisOperation, ...]
    bubble: Bubble | None
    """None: no pipeline, or no step of it can be split."""
    stragglers: Stragglers
    late_ranks: LateRanks = field(default_factory=LateRanks)
    """Exposed wait by the rank that joined last."""
    slowdown: Slowdown | None = None
    """Cost of stragglers, by replays; None: the run was not imported from a table of operations."""
    sampled_windows: tuple[SampledWindow, ...] = ()
    """Windows in which several ranks sampled their Python stacks; empty if the timeline is a part of a run."""
    host_shortages: tuple[HostShortage, ...] = ()
    """Shortages that several ranks of a host share, the worst first."""
    jitter_roots: tuple[Root, ...] = ()
    """Ranks whose own delays caused jitter in their pipelines, the largest first."""
    critical_path: CriticalPath | None = None
    """None: there is no counted step, or the timeline is a part of a run."""
    utilization: Utilization
    energy: Energy = OF_A_PART
    sampling: Sampling = NOT_SAMPLED
    """Steps with detail; of no step if the timeline is a part of a run."""
    faults: tuple[Fault, ...] = ()
    """In order of time, with marks (checkpoints, evaluations, events), of all attempts."""
    hangs: tuple[Hang, ...] = ()
    """Hangs and mismatched collectives, the first cause first."""
    group_waits: tuple[GroupWait, ...] = ()
    """Groups in which a rank waited."""
    calls: tuple[RankCalls, ...] = ()
    """Call sites of each rank; empty if the timeline is a part of a run."""
    job_activity: JobActivity | None = None
    """None: the run names no workflow and waits for no other job, or the timeline is a part of a run."""
    rollouts: Rollouts | None = None
    """None: the training records no rollouts, or the timeline is a part of a run."""
    memory: tuple[MemoryUse, ...] = ()
    memory_splits: tuple[RankSplits, ...] = ()
    """One entry per rank whose tensors the recorder counted."""
    training_step_offset: int | None = None
    """What to add to a number of a step for the training's own number, up to the attempt's first rollback. None: it is
    unknown, or the timeline is a part of a run.
    """
    grown_tensors: tuple[GrownTensors, ...] = ()
    """Ranks whose live tensors were counted because their memory grows."""
    memory_snapshots: tuple[RankSnapshot, ...] = ()
    """Imported ones, one per rank and GPU."""
    out_of_memory: tuple[OutOfMemory, ...] = ()
    """Ranks that ended by a shortage of memory."""
    goodput: Goodput | None = None
    """None: no step began."""
    reliability: Reliability | None = None
    """Interruptions over all attempts; None as goodput, but a logbook has it."""
    background_saves: BackgroundSaves | None = None
    """None: no background save has ended in the last attempt, or the timeline is a part of a run."""
    data_order: DataOrder | None = None
    """None: at most one attempt made steps, no batch was recorded, or the timeline is a part of a run."""
    state_checks: StateChecks | None = None
    """None: the state was not checked (`corruption_check_steps`), or the timeline is a part of a run."""
    device_stalls: tuple[DeviceStall, ...] | None = None
    """None: the ledger contains all stalls, because no rank computes on a GPU, or because it is the GPUs' ledger."""
    host_hidden_waits: Mapping[str, int] | None = None
    """Term -> ns that the host waited in counted steps while its GPU worked; None: the host measured the ledger."""
    why_on_host: str | None = None
    """Why the hosts measured the ledger of a training on GPUs; None: they did not, or it has none."""
    run_ahead: RunAhead | None = None
    """None: no marks on compute streams measured the ledger."""
    kernels: Kernels | None = None
    """None: no kernel trace was recorded or imported."""
    gpu_partition: tuple[GpuPartition, ...] = ()
    """One entry per GPU in a kernel trace."""
    queue_lengths: tuple[QueueLength, ...] = ()
    """One entry per stream in a kernel trace."""
    unfused: Unfused | None = None
    """None: no trace contains a kernel that computes."""
    verdict: tuple[Finding, ...]

    @property
    def timeline(self) -> Timeline:
        return self.context.timeline

    @property
    def experts(self) -> ExpertLoads | None:
        """None: the training logged no expert loads."""
        return self.utilization.experts

    @property
    def faults_of_attempt(self) -> tuple[Fault, ...]:
        """Those of the attempt whose steps and ledger this is: the last one."""
        attempts = (None, self.timeline.run.last_attempt)
        return tuple(fault for fault in self.faults if fault.attempt in attempts)

    @property
    def end_ns(self) -> int | None:
        """End of the run, after its last record if it hung. None without records."""
        return run_end_ns(self.timeline, self.hangs) if self.timeline.ranks else None

    @property
    def median_step_ns(self) -> int | None:
        """Median wall time of a step, over ranks and all steps except the warm-up."""
        walls = [rank.wall_ns[rank.timed] for rank in self.ledger.ranks]
        joined = np.concatenate(walls) if walls else np.empty(0)
        return round(float(np.median(joined))) if len(joined) else None


Progress = Callable[[int, int], None]
"""Called with the number of ranks that were analysed one by one, and of all. They are compared after that."""


def analyze(
    timeline: Timeline,
    *,
    excluded_steps: ExcludedSteps | None = None,
    members: Timeline | None = None,
    measured: Timeline | None = None,
    instances: Instances | None = None,
    progress: Progress = lambda *_: None,
) -> Analysis:
    """Compute where the time of a run went. Pure: it reads only the timeline.

    Works rank by rank and reduces each to its sums before it slices the next: a rank's slices are as large as
    its records. A caller whose timeline is a part of a run gives `excluded_steps`, the steps that enter no sum.
    Then the critical path is not computed: a running job has no time for it. `members` is the timeline with ranks of
    other hosts (`timeline.with_peers`): their records split waits from transfers, and enter no other result.
    `measured`: the part of the run that the ledger measures, if it is the GPUs' (`timeline.device.on_device`).
    `instances`: the matched collectives of all these ranks, if the caller has them.
    """
    progress(0, len(timeline.ranks))
    complete_run = excluded_steps is None
    part = measured if complete_run or measured is not None else timeline
    context = Context(timeline, members, part, matched=instances)
    measured = context.measured
    excluded_steps = find_excluded_steps(measured) if excluded_steps is None else excluded_steps
    streams = context.on_streams
    last, wire = streams.last, streams.transfers
    steps, idle = _replayed(replica_steps(measured), streams)
    pipelined = any((rank.main["kind"] == Kind.ACTION).any() for rank in measured.ranks)
    in_pipeline = {rank for group in steps if one_clock(measured, group) for rank in group.ranks}
    stall_totals = {}
    waited = {}
    wait_spans_of = {}
    tracks = {}
    step_moves = _step_moves(context, excluded_steps) if complete_run else None
    moves: dict[int, Moves] = {}
    calls = []
    in_workflow = complete_run and is_job_of_a_workflow(timeline)
    done_by_rank: dict[int, Activities] = {}
    ledgers = []
    for done, (rank, recorded) in enumerate(zip(measured.ranks, timeline.ranks, strict=True), start=1):
        ends = window_ends(rank, steps)
        slices, split = context.slices(rank, window_ends=ends[ends != NO_WINDOW])
        own_ledger = rank_ledger(
            rank,
            slices,
            split,
            window_ends=ends,
            idle=idle[rank.rank],
            pipelined=pipelined,
            excluded=excluded_steps,
        )
        if in_workflow:
            done_by_rank[rank.rank] = activities(rank, slices, split, recorded=recorded)
        stall_totals[rank.rank] = sum_stalls(slices, split, counted=own_ledger.counted, last=last)
        waited[rank.rank] = rank_waits(slices, split, counted=own_ledger.counted, instances=streams.instances)
        if rank.rank in in_pipeline:
            wait_spans_of[rank.rank] = wait_spans(slices, split, instances=streams.instances)
        if complete_run:
            released = releases(rank, slices, split, instances=streams.instances, wire=wire, last=last)
            tracks[rank.rank] = track(slices, split, released)
            if step_moves is not None and rank.steps:
                moves[rank.rank] = step_moves.rank_moves(rank, slices, split, released)
            counted = own_ledger.counted
            called = replace(recorded, steps=rank.steps)
            split = replace(split, instance=context.instances.find(rank, slices.intervals[slices.owner[split.at]]))
            calls.append(
                rank_calls(called, slices, split, counted=counted, instances=context.instances, wire=context.transfers)
            )
        ledgers.append(own_ledger)
        progress(done, len(measured.ranks))
    ahead = run_ahead(measured, tuple(ledgers)) if measured.by_marks else None
    ledger = assemble(
        tuple(ledgers),
        excluded_steps=excluded_steps,
        clock=measured.ledger_clock,
        not_measured=tuple(unmarked_terms(ahead)) if measured.by_marks else _without_launches(timeline),
    )
    roots, path = jitter_roots(ledger, wait_spans_of), critical_path(measured, ledger, tracks) if complete_run else None
    order, state = (data_order(timeline), state_checks(timeline)) if complete_run else (None, None)
    saves = background_saves(timeline, ledger) if complete_run else None
    result = _analysis(
        context,
        ledger,
        stall_totals,
        measured=measured,
        ahead=ahead,
        steps=steps,
        roots=roots,
        path=path,
        replayed=None if step_moves is None else ReplayedSteps(numbers=step_moves.numbers, moves=moves),
        order=order,
        state=state,
        saves=saves,
        windows=slow_code(timeline) if complete_run else (),
        calls=tuple(calls),
    )
    waits = group_waits(timeline, waited)
    result = replace(result, group_waits=waits)
    if not complete_run:
        return result
    attempts = () if timeline.run.info.imported else all_attempts(timeline)
    overhead = recorder_overhead(timeline)
    return replace(
        result,
        faults=with_history(result.faults, timeline, attempts),
        training_step_offset=training_step_offset(attempts),
        job_activity=job_activity(timeline, ledger, done_by_rank) if in_workflow else None,
        rollouts=rollouts(timeline, ledger),
        energy=energy(timeline, ledger),
        sampling=sampling(timeline, ledger, own_ratio=None if overhead is None else overhead.ratio),
    )


def _without_launches(timeline: Timeline) -> tuple[str, ...] | None:
    """The terms that nothing measures if imported traces lack every launch; None where the clock alone decides."""
    traces = (trace for of_rank in timeline.traces.ranks.values() for trace in of_rank)
    if not timeline.run.info.imported or not timeline.traces.ranks or any(map(has_launches, traces)):
        return None
    without = NOT_MEASURED[timeline.ledger_clock]
    return without if "launch_gap" in without else (*without, "launch_gap")


def _analysis(
    context: Context,
    ledger: Ledger,
    stall_totals: Mapping[int, tuple[StallTotal, ...]],
    *,
    measured: Timeline,
    ahead: RunAhead | None,
    steps: tuple[ReplicaSteps, ...],
    roots: tuple[Root, ...],
    path: CriticalPath | None,
    replayed: ReplayedSteps | None,
    order: DataOrder | None,
    state: StateChecks | None,
    saves: BackgroundSaves | None,
    windows: tuple[SampledWindow, ...],
    calls: tuple[RankCalls, ...],
) -> Analysis:
    timeline = context.timeline
    imported = timeline.run.info.imported
    comm = communication(context.instances, stall_totals, wire=context.transfers, ledger=ledger, imported=imported)
    excluded = frozenset((*ledger.excluded_steps, *ledger.dropped_steps, *ledger.unwatched_steps))
    counted = tuple(kept for group in steps if (kept := group.without(excluded)) is not None)
    bubble = _bubble(measured, ledger, counted)
    pipeline = None if path is None else _recorded_pipeline(bubble, context.on_streams, comm)
    prices = Prices(ledger=ledger, path=path, steps=replayed, pipeline=pipeline)
    straggling = with_prices(stragglers(timeline, ledger, stall_totals), prices)
    slower = slowdown(timeline.run.operations)
    ends = endings(timeline)
    stopped = hangs(timeline, context.own_instances, ends)
    all_stops = (*stopped, *stops_that_ended(timeline))
    faults, used = fault_stream(timeline, ledger, ends, all_stops, order=order, state=state), memory(timeline)
    splits, grown = memory_splits(timeline), grown_tensors(timeline)
    short, snapshots = shortages(timeline, ends, splits, grown), rank_snapshots(timeline)
    job = goodput(timeline, end_ns=run_end_ns(timeline, stopped) if stopped else None)
    reliable = reliability(timeline, job, ends=ends, hangs=stopped, background=saves)
    marker = timeline.run.info.settings.get("step_marker")
    bandwidths = {rank.rank: memory_bandwidth(rank.info.device) for rank in timeline.run.ranks}
    queues: list[QueueLength] = []
    chains = unfused(_traced_gpus(timeline, marker=marker, queues=queues), bandwidths)
    by_kernel = kernels(timeline)
    experts, gpus, on_streams = expert_loads(timeline), gpu_partition(timeline), device_stalls(timeline, ledger)
    short_hosts = host_shortages(timeline, ledger)
    used_peak = utilization(timeline, ledger, job, experts=experts, shapes=shapes_evidence(timeline))
    return Analysis(
        context=context,
        began_ns=min([timeline.extent_ns[0], *(() if job is None else (each.began_ns for each in job.attempts))]),
        ledger=ledger,
        comm=comm,
        bubble=bubble,
        stragglers=straggling,
        late_ranks=late_ranks(stall_totals.values()),
        slowdown=slower,
        host_shortages=short_hosts,
        sampled_windows=windows,
        jitter_roots=roots,
        critical_path=path,
        utilization=used_peak,
        faults=faults,
        hangs=all_stops,
        memory=used,
        memory_splits=splits,
        grown_tensors=grown,
        out_of_memory=short,
        memory_snapshots=snapshots,
        goodput=job,
        reliability=reliable,
        background_saves=saves,
        data_order=order,
        state_checks=state,
        device_stalls=on_streams,
        why_on_host=None if measured is not timeline else why_on_host(timeline, on_streams),
        host_hidden_waits=host_hidden_waits(measured, ledger),
        run_ahead=ahead,
        kernels=by_kernel,
        gpu_partition=gpus,
        queue_lengths=tuple(queues),
        unfused=chains,
        calls=calls,
        verdict=verdict(
            timeline,
            ledger,
            bubble,
            comm,
            straggling,
            roots,
            faults=faults,
            shortages=short_hosts,
            hangs=all_stops,
            memory=used,
            state=state,
            grown=grown,
            out_of_memory=short,
            snapshots=snapshots,
            experts=experts,
            gpus=gpus,
            ahead=ahead,
            ratios=used_peak.ratios,
            kernels=by_kernel,
            unfused=chains,
            slowdown=slower,
            prices=prices,
            reliability=reliable,
            windows=windows,
            calls=calls,
            order=order,
            fed=None if order is None and not calls else fed_data(timeline),
        ),
    )


def _traced_gpus(timeline: Timeline, *, marker: str | None, queues: list[QueueLength]) -> Iterator[TracedGpu]:
    """Yield the GPUs of all traces, and add the lengths of their queues: each trace is read once for both."""
    for rank, traces in timeline.traces.ranks.items():
        for gpu in traced_gpus(traces, rank=rank, marker=marker):
            queues.extend(queue_lengths((gpu,)))
            yield gpu


def _step_moves(context: Context, excluded: ExcludedSteps) -> StepMoves | None:
    """Choose the steps whose replay gives the verdict's gains; None if no step can be replayed, or one is too large."""
    completed = [{step.number for step in rank.steps} for rank in context.measured.ranks if rank.steps]
    counted = sorted(set.intersection(*completed) - excluded.numbers) if completed else []
    numbers = last_steps(context.measured, counted, max_records=MAX_RECORDS)
    return StepMoves.of(context, numbers) if numbers else None


def _recorded_pipeline(bubble: Bubble | None, streams: Context, comm: tuple[AxisOperation, ...]) -> Measured | None:
    try:
        return recorded_pipeline(bubble, streams, comm)
    except UsageError:
        return None


def _replayed(
    steps: tuple[ReplicaSteps, ...], streams: Context
) -> tuple[tuple[ReplicaSteps, ...], Mapping[int, list[Idle]]]:
    """Return the steps that can be replayed, and the replays' idle times of each rank."""
    measured = measured_transfers(streams.instances, streams.transfers) if steps else {}
    if streams.timeline.by_marks:
        steps = tuple(_with_transfers(steps, streams))
    replayed = []
    idle: dict[int, list[Idle]] = defaultdict(list)
    for group in steps:
        idle_by_rank = replay_idle(group, stage_transfers(group, measured))
        if idle_by_rank:
            replayed.append(group)
        for rank, replays in idle_by_rank.items():
            idle[rank].append(replays)
    return tuple(replayed), idle


def _with_transfers(steps: tuple[ReplicaSteps, ...], streams: Context) -> Iterator[ReplicaSteps]:
    """Leave out the steps whose transfers marks do not show."""
    for group in steps:
        kept = group.without(unclear_steps(group, streams.instances, streams.transfers))
        if kept is not None:
            yield kept


def _bubble(timeline: Timeline, ledger: Ledger, steps: tuple[ReplicaSteps, ...]) -> Bubble | None:
    """Build the bubble: stages from the ledger, schedule and theory from the last step of the last replica."""
    if not steps:
        return None
    ranks_of: dict[tuple[int, ...], set[int]] = {}
    for group in steps:
        for rank, order in group.replica.orders.items():
            ranks_of.setdefault(tuple(sorted({action.stage for action in order})), set()).add(rank)
    newest = max((group for group in steps if group.ranks == steps[-1].ranks), key=lambda group: int(group.numbers[-1]))
    expected, shown = theory(newest.last()), _median_step(ledger, newest)
    return Bubble(
        schedule=expected.schedule,
        num_stages=len(newest.replica.stages),
        num_microbatches=expected.num_microbatches,
        chunks=expected.chunks,
        stages=tuple(_stage(ledger, steps, stages, ranks) for stages, ranks in sorted(ranks_of.items())),
        theory_ratio=expected.formula_ratio,
        replay_ratio=expected.replay_ratio,
        one_clock=all(one_clock(timeline, group) for group in steps),
        step=shown,
        timetable=step_timetable(timeline, newest, shown) if one_clock(timeline, newest) else None,
    )


def _median_step(ledger: Ledger, steps: ReplicaSteps) -> int:
    """Find the step of median length; of an even number, the shorter of the two in the middle."""
    (first,) = (rank for rank in ledger.ranks if rank.rank == steps.ranks[0])
    wall = by_number(steps.numbers, first.numbers, first.wall_ns, missing=0)
    order = np.argsort(wall, kind="stable")
    return int(steps.numbers[order[(len(order) - 1) // 2]])


def _stage(ledger: Ledger, steps: tuple[ReplicaSteps, ...], stages: tuple[int, ...], ranks: set[int]) -> StageBubble:
    ledgers = [rank for rank in ledger.ranks if rank.rank in ranks]
    work_ns = {stage: usual_work_ns(steps, stage) for stage in stages}

    def total(part: str) -> int:
        return sum(rank.total(f"bubble.{part}") or 0 for rank in ledgers)

    return StageBubble(
        stage=stages[0],
        others=stages[1:],
        slowest=max(stages, key=lambda stage: work_ns[stage]),
        ranks=tuple(sorted(ranks)),
        schedule_ns=total("schedule"),
        imbalance_ns=total("imbalance"),
        jitter_ns=total("jitter"),
        wall_ns=sum(_replayed_ns(rank, steps) for rank in ledgers),
        work_ns=sum(work_ns.values()),
    )


def _replayed_ns(rank: RankLedger, steps: tuple[ReplicaSteps, ...]) -> int:
    """Sum the wall time of the rank's steps that are among `steps`."""
    numbers = np.concatenate([group.numbers for group in steps if rank.rank in group.ranks])
    return int(rank.wall_ns[np.isin(rank.numbers, numbers)].sum())
