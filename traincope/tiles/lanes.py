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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import ACTION_TERMS, PHASE_TERMS, UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.arrays import Ints
from traincope.events import OPEN, Flag, Kind, Phase
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
    "host": (Phase.GC, Phase.COMPILE, Phase.SYNC, Phase.NONE),
}


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
class Lane:
    """Spans of one lane in order of begin; of equal begins the longest first."""

    name: str
    spans: NDArray[np.void]
    """SPAN_DTYPE, without `parent` and `depth`; times are on the common axis."""
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


def lanes(rank: RankTimeline, instances: Instances, registry: Registry) -> Iterator[Lane]:
    """All lanes of a rank that have a span; `build.py` makes `activity` from them."""
    main = rank.main
    on_host = main["flags"] & Flag.DEVICE == 0
    kind, phase = main["kind"], main["phase"]
    chosen: dict[str, NDArray[np.bool_]] = {"steps": (kind == Kind.STEP) & (main["flags"] & Flag.PARTIAL == 0)}
    for name, phases in PHASE_LANES.items():
        chosen[name] = on_host & (kind == Kind.PHASE) & np.isin(phase, phases)
    chosen["pipeline"] = on_host & (kind == Kind.ACTION)
    chosen["spans"] = kind == Kind.SPAN
    chosen["device"] = ~on_host & np.isin(kind, (Kind.PHASE, Kind.ACTION, Kind.STALL))
    for name, mask in chosen.items():
        at = np.flatnonzero(mask)
        if len(at):
            yield _lane(name, rank, main[at], at, instances=instances, registry=registry)
    yield from _communication(rank, instances, registry)
    for name, records in rank.threads.items():
        selected = records[np.isin(records["kind"], (Kind.PHASE, Kind.SPAN, Kind.STALL))]
        if name != TRAINING_THREAD and len(selected):
            nowhere = np.full(len(selected), NOTHING, dtype=np.int64)
            yield _lane(f"thread {name}", rank, selected, nowhere, instances=instances, registry=registry)


def _communication(rank: RankTimeline, instances: Instances, registry: Registry) -> Iterator[Lane]:
    """One lane per axis: collectives of all threads, and the training thread's stalls in them."""
    parts, places = [], []
    for name, records in rank.threads.items():
        mask = records["kind"] == Kind.COLLECTIVE
        if name == TRAINING_THREAD:
            mask |= (records["kind"] == Kind.STALL) & (records["flags"] & Flag.DEVICE == 0)
        at = np.flatnonzero(mask)
        parts.append(records[at])
        places.append(at if name == TRAINING_THREAD else np.full(len(at), NOTHING, dtype=np.int64))
    records, at = np.concatenate(parts), np.concatenate(places)
    axes = [group.axis for group in rank.groups] + ["?"]
    order = sorted(set(axes), key=axis_order)
    axis = np.array([order.index(axis_name) for axis_name in axes])[np.minimum(records["group"], len(rank.groups))]
    for number, name in enumerate(order):
        selected = axis == number
        if selected.any():
            yield _lane(
                f"{COMM}{name}",
                rank,
                records[selected],
                at[selected],
                instances=instances,
                registry=registry,
                axis=name,
            )


def _lane(
    name: str,
    rank: RankTimeline,
    records: NDArray[np.void],
    at: Ints,
    *,
    instances: Instances,
    registry: Registry,
    axis: str | None = None,
) -> Lane:
    ends = np.where(records["end_ns"] == OPEN, max(rank.last_ns, 0), records["end_ns"])
    order = np.lexsort((-ends, records["start_ns"]))
    records, at, ends = records[order], at[order], ends[order]
    spans = np.zeros(len(records), dtype=SPAN_DTYPE)
    for column in ("start_ns", "value", "step", "sequence", "peer", "flags", "kind"):
        spans[column] = records[column]
    spans["end_ns"] = np.maximum(ends, records["start_ns"])
    spans["open"] = records["end_ns"] == OPEN
    named = registry.names.numbers_of([*rank.names, "?"])
    spans["name"] = named[np.minimum(records["name"], len(rank.names))]
    spans["parent"] = spans["instance"] = spans["group"] = NOTHING
    spans["class"] = _classes(rank, records, registry, axis=axis)
    if axis is not None:
        numbers = [registry.groups.setdefault((g.axis, g.key, g.ranks), len(registry.groups)) for g in rank.groups]
        spans["group"] = np.array([*numbers, NOTHING])[np.minimum(records["group"], len(rank.groups))]
        spans["instance"] = instances.find(rank, records)
        spans["wait_ns"] = _waits(rank, spans, instances)
    return Lane(name=name, spans=spans, records=at)


def _classes(
    rank: RankTimeline, records: NDArray[np.void], registry: Registry, *, axis: str | None
) -> NDArray[np.uint8]:
    """Class of each record: its ledger term, if it has one."""
    classes = np.full(len(records), registry.classes.number(OTHER), dtype=np.uint8)
    of_phase = np.full(256, classes[0] if len(classes) else 0, dtype=np.uint8)
    present = set(records["phase"].tolist())
    for phase, term in PHASE_TERMS.items():
        if phase in present:
            of_phase[phase] = registry.classes.number(term)
    classes[:] = of_phase[records["phase"]]
    acted = (records["kind"] == Kind.ACTION) & (records["phase"] != Phase.EVALUATION)
    for number in np.unique(records["name"][acted]).tolist():
        term = ACTION_TERMS.get(rank.name(number), OTHER)
        classes[acted & (records["name"] == number)] = registry.classes.number(term)
    plain = {Kind.STEP: STEP, Kind.SPAN: SPAN}
    if axis is not None:
        plain |= {Kind.COLLECTIVE: overlapped(axis), Kind.STALL: exposed_transfer(axis)}
    for kind, name in plain.items():
        of_kind = records["kind"] == kind
        if of_kind.any():
            classes[of_kind] = registry.classes.number(name)
    if axis is not None and (records["kind"] == Kind.STALL).any():
        registry.classes.number(exposed_wait(axis))
    return classes


def _waits(rank: RankTimeline, spans: NDArray[np.void], instances: Instances) -> Ints:
    """Wait of each span, from its begin until the transfer begins."""
    parts = instances.parts_of[rank.rank]
    number = instances.number[parts].astype(np.int64)
    turns = instances.parts.end_ns[parts] - instances.transfer_ns[number]
    order = np.argsort(number, kind="stable")
    if not len(order):
        return np.full(len(spans), NOTHING, dtype=np.int64)
    sorted_numbers = number[order]
    place = np.minimum(np.searchsorted(sorted_numbers, spans["instance"].astype(np.int64)), len(order) - 1)
    known = (sorted_numbers[place] == spans["instance"]) & np.append(instances.splits, False)[spans["instance"]]
    waited = np.clip(turns[order][place] - spans["start_ns"], 0, spans["end_ns"] - spans["start_ns"])
    return np.where(known, waited, NOTHING)


def wait_classes(classes: tuple[str, ...]) -> NDArray[np.uint8]:
    """Class of an exposed transfer -> class of the exposed wait before it."""
    table = np.arange(256).astype(np.uint8)
    prefix = exposed_transfer("").removesuffix("]")
    for number, name in enumerate(classes):
        if name.startswith(prefix):
            wait = exposed_wait(name.removeprefix(prefix).removesuffix("]"))
            table[number] = classes.index(wait) if wait in classes else number
    return table
