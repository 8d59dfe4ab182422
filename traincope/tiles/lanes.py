"""Spans of a rank's records on lanes, with their class, their nesting and the wait in them.

| lane       | content                                                                 |
|------------|-------------------------------------------------------------------------|
| steps      | steps                                                                   |
| activity   | the training thread's time; each instant belongs to the innermost span  |
| compute    | forward, backward, recompute, optimizer, evaluation                     |
| pipeline   | pipeline actions                                                        |
| comm AXIS  | collectives on a mesh axis, and the thread's stalls in them             |
| data, checkpoint, host | data wait; checkpoints; gc, compilation, sync               |
| spans      | `traincope.span()`                                                      |
| thread NAME, device | records of other threads and of the device                     |
| gpu N, stream M | kernels of a trace                                                 |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import (
    ACTION_TERMS,
    NAMED_PREFIX,
    PHASE_TERMS,
    UNATTRIBUTED,
    exposed_transfer,
    exposed_wait,
)
from traincope.arrays import Codes, Ints, chosen, joined
from traincope.events import APART, OPEN, Flag, Kind, Phase
from traincope.tiles.storage import NOTHING, SPAN_DTYPE
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.timeline import TRAINING_THREAD
from traincope.topology import axis_order

ACTIVITY = "activity"
COMM = "comm "
MAX_CLASSES = 250
STEP, SPAN = "step", "span"
OTHER = UNATTRIBUTED

PHASE_LANES: Mapping[str, tuple[Phase, ...]] = {
    "compute": (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.EVALUATION),
    "data": (Phase.DATA_WAIT, Phase.JOB_WAIT),
    "checkpoint": (Phase.CHECKPOINT_STALL,),
    "parts": tuple(APART.values()),
    "host": (Phase.GC, Phase.COMPILE, Phase.SYNC, Phase.OBJECTS, Phase.NONE),
}

FIXED = ("steps", *PHASE_LANES, "pipeline", "spans", "device")
"""Lanes before those of communication, in order."""
NUM_KINDS, NUM_PHASES = max(Kind) + 1, max(Phase) + 1


def _lanes_of_main() -> Ints:
    """Array (on the device, kind, phase): lane of a record of the training thread. All of communication have one."""
    lane = np.full((2, NUM_KINDS, NUM_PHASES), NOTHING)
    host, device, communication = 0, 1, len(FIXED)
    lane[:, Kind.STEP], lane[:, Kind.SPAN] = FIXED.index("steps"), FIXED.index("spans")
    lane[host, Kind.ACTION] = FIXED.index("pipeline")
    lane[device, (Kind.PHASE, Kind.ACTION, Kind.STALL)] = FIXED.index("device")
    lane[:, Kind.COLLECTIVE] = lane[host, Kind.STALL] = communication
    for name, phases in PHASE_LANES.items():
        lane[host, Kind.PHASE, phases] = FIXED.index(name)
    return lane


LANES_OF_MAIN = _lanes_of_main()
IN_THREAD = (Kind.PHASE, Kind.SPAN, Kind.STALL)
"""Kinds of records on the lane of a thread that does not train."""


def overlapped(axis: str) -> str:
    """Class of a collective while the thread does not stall for it."""
    return f"overlapped[{axis}]"


@dataclass(slots=True)
class Numbering:
    """Strings, numbered in order of first use."""

    numbers: dict[str, int] = field(default_factory=dict)
    limit: int | None = None
    """Maximum count; further strings get the number of `OTHER`."""

    def number(self, text: str) -> int:
        known = self.numbers.get(text)
        if known is None:
            full = self.limit is not None and len(self.numbers) >= self.limit
            known = self.number(OTHER) if full and text != OTHER else len(self.numbers)
            self.numbers.setdefault(text, known)
        return known

    @property
    def texts(self) -> tuple[str, ...]:
        """Strings with a number, in order."""
        return tuple(self.numbers)[: self.limit]

    def numbers_of(self, texts: Sequence[str]) -> NDArray[np.int32]:
        return np.array([self.number(text) for text in texts] or [NOTHING], dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lanes of a rank that have a span, one after the other."""

    names: tuple[str, ...]
    bounds: tuple[int, ...]
    """Position of the first span of each lane, and the number of all spans."""
    spans: NDArray[np.void]
    """SPAN_DTYPE, without `parent` and `depth`; times are on the common axis. Those of a lane are in order of begin; of
    equal begins the longest is first.
    """
    records: Ints
    """Position of each span's record in the training thread; NOTHING for other threads."""


@dataclass(slots=True, kw_only=True)
class Registry:
    """Names, classes and groups of the run, shared by the spans of all ranks."""

    names: Numbering = field(default_factory=Numbering)
    classes: Numbering = field(default_factory=lambda: Numbering(limit=MAX_CLASSES))
    groups: dict[tuple[str, str, tuple[int, ...]], int] = field(default_factory=dict)
    """(Axis, key, ranks) -> number."""

    def __post_init__(self) -> None:
        self.classes.number(OTHER)


def rank_lanes(rank: RankTimeline, instances: Instances, registry: Registry) -> Lanes:
    """Arrange the records of a rank on its lanes; `build.py` makes `activity` from the result.

    It works on all lanes at once: most are so short that a call of numpy costs more than their spans.
    """
    axes = sorted({*(group.axis for group in rank.groups), "?"}, key=axis_order)
    placed = [_place(rank, name, axes=axes) for name in rank.threads]
    records = joined([records for records, _, _ in placed])
    lane, at = (np.concatenate(column) for column in list(zip(*placed, strict=True))[1:])
    ends = np.where(records["end_ns"] == OPEN, max(rank.last_ns, 0), records["end_ns"])
    order = np.lexsort((-ends, records["start_ns"], lane))
    lane, records, at, ends = lane[order], chosen(records, order), at[order], ends[order]
    spans = np.zeros(len(records), dtype=SPAN_DTYPE)
    for column in ("start_ns", "value", "step", "sequence", "peer", "flags", "kind"):
        spans[column] = records[column]
    spans["end_ns"] = np.maximum(ends, records["start_ns"])
    spans["open"] = records["end_ns"] == OPEN
    spans["parent"] = spans["instance"] = spans["group"] = NOTHING
    if len(spans):
        spans["name"] = registry.names.numbers_of([*rank.names, "?"])[np.minimum(records["name"], len(rank.names))]
    numbers, first = np.unique(lane, return_index=True)
    bounds, axis_of = (*first.tolist(), len(spans)), dict(enumerate(axes, start=len(FIXED)))
    for number, (begin, end) in zip(numbers.tolist(), pairwise(bounds), strict=True):
        spans["class"][begin:end] = _classes(rank, records[begin:end], registry, axis=axis_of.get(number))
    begin, end = np.searchsorted(lane, (len(FIXED), len(FIXED) + len(axes))).tolist()
    if end > begin:
        _add_instances(spans[begin:end], rank, records[begin:end], instances, registry)
    names = (*FIXED, *(f"{COMM}{axis}" for axis in axes), *(f"thread {name}" for name in rank.threads))
    return Lanes(names=tuple(names[number] for number in numbers.tolist()), bounds=bounds, spans=spans, records=at)


def _place(rank: RankTimeline, thread: str, *, axes: Sequence[str]) -> tuple[NDArray[np.void], Ints, Ints]:
    """The records of a thread that have a lane; the number of their lane; and their position, NOTHING if it does not
    train. Lanes are numbered as in `rank_lanes`: `FIXED`, one per axis, one per thread.
    """
    records, communication = rank.threads[thread], len(FIXED)
    if thread == TRAINING_THREAD:
        lane = LANES_OF_MAIN[(records["flags"] & Flag.DEVICE != 0).view(np.int8), records["kind"], records["phase"]]
        lane[(records["kind"] == Kind.STEP) & (records["flags"] & Flag.PARTIAL != 0)] = NOTHING
    else:
        of_kind = np.full(NUM_KINDS, NOTHING)
        of_kind[Kind.COLLECTIVE] = communication
        of_kind[list(IN_THREAD)] = communication + len(axes) + list(rank.threads).index(thread)
        lane = of_kind[records["kind"]]
    axis = np.array([axes.index(group.axis) for group in rank.groups] + [axes.index("?")])
    communicates = np.flatnonzero(lane == communication)
    lane[communicates] += axis[np.minimum(records["group"][communicates], len(rank.groups))]
    at = np.flatnonzero(lane != NOTHING)
    return chosen(records, at), lane[at], at if thread == TRAINING_THREAD else np.full(len(at), NOTHING)


def _classes(rank: RankTimeline, records: NDArray[np.void], registry: Registry, *, axis: str | None) -> Codes:
    """Class of each record of a lane: its ledger term, if it has one."""
    number = registry.classes.number
    code = records["kind"] * np.intp(NUM_PHASES) + records["phase"]
    present = [divmod(at, NUM_PHASES) for at in np.flatnonzero(np.bincount(code)).tolist()]
    kinds, phases = ({pair[side] for pair in present} for side in (0, 1))
    of_phase = {int(phase): number(term) for phase, term in PHASE_TERMS.items() if phase in phases}
    plain = {Kind.STEP: STEP, Kind.SPAN: SPAN}
    if axis is not None:
        plain |= {Kind.COLLECTIVE: overlapped(axis), Kind.STALL: exposed_transfer(axis)}
    of_kind = {int(kind): number(name) for kind, name in plain.items() if kind in kinds}
    if axis is not None and Kind.STALL in kinds:
        number(exposed_wait(axis))
    table = np.full(NUM_KINDS * NUM_PHASES, number(OTHER), dtype=np.int32)
    for kind, phase in present:
        table[kind * NUM_PHASES + phase] = of_kind.get(kind, of_phase.get(phase, number(OTHER)))
    classes: Codes = table[code]
    if Phase.NAMED in phases:
        part = np.flatnonzero((records["kind"] == Kind.PHASE) & (records["phase"] == Phase.NAMED))
        names, name = np.unique(records["name"][part], return_inverse=True)
        terms = [f"{NAMED_PREFIX}{rank.name(number)}" for number in names.tolist()]
        classes[part] = registry.classes.numbers_of(terms)[name]
    if Kind.ACTION in kinds:
        acted = np.flatnonzero((records["kind"] == Kind.ACTION) & (records["phase"] != Phase.EVALUATION))
        names, name = np.unique(records["name"][acted], return_inverse=True)
        terms = [ACTION_TERMS.get(rank.name(action), OTHER) for action in names.tolist()]
        classes[acted] = registry.classes.numbers_of(terms)[name]
    return classes


def _add_instances(
    spans: NDArray[np.void], rank: RankTimeline, records: NDArray[np.void], instances: Instances, registry: Registry
) -> None:
    """Fill in group, instance and wait of new spans of communication."""
    numbers = [registry.groups.setdefault((g.axis, g.key, g.ranks), len(registry.groups)) for g in rank.groups]
    spans["group"] = np.array([*numbers, NOTHING])[np.minimum(records["group"], len(rank.groups))]
    spans["instance"] = instances.find(rank, records)
    spans["wait_ns"] = _waits(rank, spans, instances)


def _waits(rank: RankTimeline, spans: NDArray[np.void], instances: Instances) -> Ints:
    """Wait of each span, from its begin until the transfer begins."""
    part = instances.own_parts(rank.rank, spans["instance"])
    known = np.flatnonzero(part != NOTHING)
    known = known[instances.splits[spans["instance"][known]]]
    starts, ends, instance = (spans[column][known] for column in ("start_ns", "end_ns", "instance"))
    waits = np.full(len(spans), NOTHING, dtype=np.int64)
    turns = instances.parts.end_ns[part[known]] - instances.transfer_ns[instance]
    waits[known] = np.clip(turns - starts, 0, ends - starts)
    return waits


def wait_classes(classes: tuple[str, ...]) -> NDArray[np.uint8]:
    """Class of an exposed transfer -> class of the exposed wait before it."""
    table = np.arange(256).astype(np.uint8)
    prefix = exposed_transfer("").removesuffix("]")
    for number, name in enumerate(classes):
        if name.startswith(prefix):
            wait = exposed_wait(name.removeprefix(prefix).removesuffix("]"))
            table[number] = classes.index(wait) if wait in classes else number
    return table
