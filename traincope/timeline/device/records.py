"""Records of a rank's GPU, in place of those that a recorder writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import NO_PEER, NO_STEP, Flag, Kind, Phase
from traincope.store import RECORD_DTYPE, RankRecords, RunRecords
from traincope.store.job.manifests import RunInfo
from traincope.store.segments.segments import SegmentRecords
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.actions import device_actions
from traincope.timeline.device.collectives import DeviceCollectives, device_collectives
from traincope.timeline.device.owners import Owned, owned
from traincope.timeline.device.phases import phases
from traincope.timeline.device.products import flops_by_step
from traincope.timeline.device.ranges import activity_ranges
from traincope.timeline.device.steps import DeviceSteps, marked_after, marked_again, marked_by_several
from traincope.timeline.device.traced import traced, why_no_steps
from traincope.timeline.device.works import Works, gpus
from traincope.timeline.intervals.painting import ABSENT
from traincope.timeline.timeline import HOST_THREAD, TRAINING_THREAD
from traincope.topology import Group
from traincope.units import count, numbers

NAMES = tuple(phase.name.lower().replace("_", " ") for phase in Phase)
"""The first names of each rank: the name of a phase's record is the number of the phase."""


def with_device_records(run: RunRecords, traces: Mapping[int, Sequence[Trace]]) -> RunRecords:
    """Give each rank of imported traces the records of its GPU, or of its host without one.

    Ranks without steps keep none. A table of operations has the records itself.
    """
    if not run.info.imported or run.operations is not None:
        return run
    return replace(
        run,
        ranks=tuple(_with_records(rank, traces.get(rank.rank, ()), run.info) for rank in run.ranks),
    )


@dataclass(slots=True)
class _Names:
    """Strings of a rank's records."""

    strings: list[str]

    def numbers(self, names: Sequence[str]) -> Ints:
        self.strings += [name for name in dict.fromkeys(names) if name not in self.strings]
        return np.array([self.strings.index(name) for name in names], dtype=np.int64)


def _with_records(rank: RankRecords, traces: Sequence[Trace], info: RunInfo) -> RankRecords:
    names, groups = _Names(list(NAMES)), list[Group]()
    parts: dict[str, list[NDArray[np.void]]] = {TRAINING_THREAD: [], HOST_THREAD: []}
    problems = list(rank.problems)
    marker = info.settings.get("step_marker")
    for gpu in traced(traces, rank=rank.rank, marker=marker):
        trace, kernels, steps = gpu.trace, gpu.works, gpu.steps
        if not gpu.has_steps:
            problems.append(why_no_steps(gpu, marker=marker))
            continue
        if gpu.problem is not None:
            problems.append(gpu.problem)
            continue
        on_gpus = gpus(trace)
        if len(on_gpus) > 1:
            problems.append(
                f"{trace.info.source} of rank {rank.rank} has kernels of {count(len(on_gpus), 'GPU')}: steps and the "
                f"ledger are those of GPU {on_gpus[0]}, which has the most"
            )
        if marker is None and (again := marked_again(trace)):
            problems.append(
                f"{trace.info.source} of rank {rank.rank} marks {numbers(again, 'step')} again after the end: two "
                "profiles are in one file, and only the first one's steps count"
            )
        if marker is None and (after := marked_after(trace)):
            problems.append(
                f"{trace.info.source} of rank {rank.rank} marks {numbers(after, 'step')} after a step with a higher "
                "number: two profiles are in one file, and only the first one's steps count"
            )
        if marker is None and (several := marked_by_several(trace)):
            problems.append(
                f"{trace.info.source} of rank {rank.rank} marks {numbers(several, 'step')} in several processes: two "
                "profiles are in one file, so the work on its GPUs may be of both; import the file of each rank"
            )
        found = device_collectives(trace, kernels, steps, rank=rank.rank, info=info)
        first = len(groups)
        groups += [replace(group, number=first + group.number) for group in found.groups]
        owner = owned(trace, kernels, borders_ns=_borders(kernels, steps))
        for records in _records(kernels, steps, found, owner, names=names, first_group=first):
            parts[TRAINING_THREAD].append(records)
        phase = phases(trace, kernels)
        parts[TRAINING_THREAD].append(_flops(trace, kernels, steps, phase=phase, names=names))
        parts[TRAINING_THREAD].append(_actions(trace, kernels, steps, phase=phase, names=names))
        if not kernels.on_host:
            parts[HOST_THREAD].append(_activities(trace, kernels, steps))
    segments = tuple(
        SegmentRecords(thread=thread, index=0, records=_sorted(records), lost_bytes=0)
        for thread, records in parts.items()
        if records
    )
    return replace(rank, names=tuple(names.strings), groups=tuple(groups), segments=segments, problems=tuple(problems))


def _borders(kernels: Works, steps: DeviceSteps) -> Ints:
    first, last = int(kernels.start_ns.min()), int(kernels.end_ns.max())
    return np.unique(np.concatenate([[first, last], steps.start_ns, steps.end_ns]))


def _sorted(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Join records in order of begin. Of equal begins, a step comes first."""
    records = np.concatenate(parts)
    return records[np.lexsort((records["kind"], records["start_ns"]))]


def _records(
    kernels: Works,
    steps: DeviceSteps,
    found: DeviceCollectives,
    owner: Owned,
    *,
    names: _Names,
    first_group: int,
) -> Iterator[NDArray[np.void]]:
    yield _step_records(steps)
    spans = np.flatnonzero(owner.phase != Phase.NONE)
    spent = _empty(len(spans), Kind.PHASE, owner.start_ns[spans], owner.end_ns[spans])
    spent["phase"] = spent["name"] = owner.phase[spans]
    yield _in_steps(spent, steps)
    if not len(found.work):
        return
    collectives = _empty(len(found.work), Kind.COLLECTIVE, kernels.start_ns[found.work], kernels.end_ns[found.work])
    collectives["name"] = names.numbers(found.operations)[found.operation]
    collectives["group"] = found.group + first_group
    collectives["sequence"], collectives["window"] = found.sequence, found.window
    collectives["value"], collectives["flags"] = found.num_bytes, Flag.ASYNC
    yield _in_steps(collectives, steps)
    of_work = np.full(len(kernels), ABSENT, dtype=np.int64)
    of_work[found.work] = np.arange(len(found.work))
    exposed = np.flatnonzero(owner.work != ABSENT)
    stalls = collectives[of_work[owner.work[exposed]]]
    stalls["kind"], stalls["start_ns"], stalls["end_ns"] = Kind.STALL, owner.start_ns[exposed], owner.end_ns[exposed]
    yield _in_steps(stalls, steps)


def _step_records(steps: DeviceSteps) -> NDArray[np.void]:
    records = _empty(len(steps.number), Kind.STEP, steps.start_ns, steps.end_ns)
    records["step"] = steps.number
    records["flags"] = Flag.DETAILED | (Flag.GUESSED if steps.guessed else 0)
    return records


def _flops(trace: Trace, kernels: Works, steps: DeviceSteps, *, phase: Ints, names: _Names) -> NDArray[np.void]:
    """Records of the FLOPs that the shapes of operators state, at the end of each step."""
    by_step = flops_by_step(trace, kernels, steps, phase=phase)
    parts = [_empty(0, Kind.FLOPS, steps.end_ns[:0], steps.end_ns[:0])]
    for (of_phase, work, dtype), flops in by_step.items():
        records = _empty(len(flops), Kind.FLOPS, steps.end_ns, steps.end_ns)
        records["step"], records["phase"], records["tag"] = steps.number, of_phase, work
        records["name"], records["value"] = names.numbers([dtype])[0], flops
        parts.append(records)
    return np.concatenate(parts)


def _actions(trace: Trace, kernels: Works, steps: DeviceSteps, *, phase: Ints, names: _Names) -> NDArray[np.void]:
    """Records of the pipeline's actions."""
    actions = device_actions(trace, kernels, phase=phase)
    records = _empty(len(actions.kind), Kind.ACTION, actions.start_ns, actions.end_ns)
    records["name"], records["peer"], records["sequence"] = (
        names.numbers(actions.kind),
        actions.stage,
        actions.microbatch,
    )
    records["phase"] = np.where(actions.evaluates, Phase.EVALUATION, Phase.NONE)
    return _in_steps(records, steps)


def _activities(trace: Trace, kernels: Works, steps: DeviceSteps) -> NDArray[np.void]:
    """Records of the activities on the threads that launch works."""
    ranges = activity_ranges(trace)
    chosen = np.isin(ranges.thread, kernels.thread) & (ranges.phase != Phase.EVALUATION)
    records = _empty(int(chosen.sum()), Kind.PHASE, ranges.start_ns[chosen], ranges.end_ns[chosen])
    records["phase"] = records["name"] = ranges.phase[chosen]
    return _in_steps(records, steps)


def _empty(count: int, kind: Kind, start_ns: Ints, end_ns: Ints) -> NDArray[np.void]:
    records = np.zeros(count, dtype=RECORD_DTYPE)
    records["kind"], records["start_ns"], records["end_ns"] = kind, start_ns, end_ns
    records["peer"] = NO_PEER
    return records


def _in_steps(records: NDArray[np.void], steps: DeviceSteps) -> NDArray[np.void]:
    at = steps.at(records["start_ns"])
    records["step"] = np.where(at < 0, NO_STEP, np.append(steps.number, NO_STEP)[at])
    return records
