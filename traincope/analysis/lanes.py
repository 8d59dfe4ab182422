"""A rank's records as spans on lanes: what each is, where it nests, which part of a wait was for others.

| lane       | what                                                                    |
|------------|-------------------------------------------------------------------------|
| steps      | steps                                                                   |
| activity   | the training thread's time, each instant owned by what was begun last   |
| compute    | forward, backward, recomputation, optimizer, evaluation                 |
| pipeline   | pipeline actions                                                        |
| comm AXIS  | collectives on a mesh axis, and in them how long the thread stood still |
| data, checkpoint, host | waiting for data; checkpoints; gc, compilation, sync        |
| spans      | `traincope.span()`                                                      |
| thread NAME, device | what other threads, and the device, recorded                   |
| gpu N, stream M | kernels of a trace                                                 |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.terms import ACTION_TERMS, PHASE_TERMS, UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.store.tiles import NOTHING, SPAN_DTYPE
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.timeline import TRAINING_THREAD
from traincope.topology import axis_order

Ints = NDArray[np.int64]

ACTIVITY = "activity"
COMM = "comm "
MOST_CLASSES = 250
STEP, SPAN = "step", "span"
OTHER = UNATTRIBUTED

PHASE_LANES: Mapping[str, tuple[Phase, ...]] = {
    "compute": (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.EVALUATION),
    "data": (Phase.DATA_WAIT,),
    "checkpoint": (Phase.CHECKPOINT_STALL,),
    "host": (Phase.GC, Phase.COMPILE, Phase.SYNC, Phase.NONE),
}


def overlapped(axis: str) -> str:
    """What a collective is while the thread did not stand still for it."""
    return f"overlapped[{axis}]"


@dataclass(slots=True)
class Numbered:
    """Strings and their numbers, given as they come."""

    numbers: dict[str, int] = field(default_factory=dict)
    most: int | None = None
    """No more than these; others are the last."""

    def number(self, text: str) -> int:
        known = self.numbers.get(text)
        if known is None:
            full = self.most is not None and len(self.numbers) >= self.most
            known = self.number(OTHER) if full and text != OTHER else len(self.numbers)
            self.numbers.setdefault(text, known)
        return known

    def all_of(self, texts: Sequence[str]) -> NDArray[np.int32]:
        return np.array([self.number(text) for text in texts] or [NOTHING], dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Spans of one lane in order of begin, of equal begins the longest first."""

    name: str
    spans: NDArray[np.void]
    """SPAN_DTYPE, without `parent` and `depth`; times are on the common axis."""
    records: Ints
    """Which record of the training thread each is, NOTHING for others."""


@dataclass(slots=True, kw_only=True)
class Book:
    """The run's names, classes and groups, shared by all ranks' spans."""

    names: Numbered = field(default_factory=Numbered)
    classes: Numbered = field(default_factory=lambda: Numbered(most=MOST_CLASSES))
    groups: dict[tuple[str, str, tuple[int, ...]], int] = field(default_factory=dict)
    """(Axis, key, ranks) -> number."""

    def __post_init__(self) -> None:
        self.classes.number(OTHER)


def lanes(rank: RankTimeline, instances: Instances, book: Book) -> Iterator[Lane]:
    """All lanes of a rank that have a span; `activity` is made of them (`tiling.py`)."""
    main = rank.main
    on_host = main["flags"] & Flag.DEVICE == 0
    kind, phase = main["kind"], main["phase"]
    chosen: dict[str, NDArray[np.bool_]] = {"steps": (kind == Kind.STEP) & (main["flags"] & Flag.PARTIAL == 0)}
    for name, phases in PHASE_LANES.items():
        chosen[name] = on_host & (kind == Kind.PHASE) & np.isin(phase, phases)
    chosen["pipeline"] = on_host & (kind == Kind.ACTION)
    chosen["spans"] = kind == Kind.SPAN
    chosen["device"] = ~on_host & np.isin(kind, (Kind.PHASE, Kind.ACTION, Kind.STALL))
    for name, which in chosen.items():
        at = np.flatnonzero(which)
        if len(at):
            yield _lane(name, rank, main[at], at, instances=instances, book=book)
    yield from _communication(rank, instances, book)
    for name, records in rank.threads.items():
        own = records[np.isin(records["kind"], (Kind.PHASE, Kind.SPAN, Kind.STALL))]
        if name != TRAINING_THREAD and len(own):
            nowhere = np.full(len(own), NOTHING, dtype=np.int64)
            yield _lane(f"thread {name}", rank, own, nowhere, instances=instances, book=book)


def _communication(rank: RankTimeline, instances: Instances, book: Book) -> Iterator[Lane]:
    """One lane an axis: collectives of all threads, and the training thread's stalls in them."""
    parts, places = [], []
    for name, records in rank.threads.items():
        wanted = records["kind"] == Kind.COLLECTIVE
        if name == TRAINING_THREAD:
            wanted |= (records["kind"] == Kind.STALL) & (records["flags"] & Flag.DEVICE == 0)
        at = np.flatnonzero(wanted)
        parts.append(records[at])
        places.append(at if name == TRAINING_THREAD else np.full(len(at), NOTHING, dtype=np.int64))
    records, at = np.concatenate(parts), np.concatenate(places)
    axes = [group.axis for group in rank.groups] + ["?"]
    order = sorted(set(axes), key=axis_order)
    axis = np.array([order.index(one) for one in axes])[np.minimum(records["group"], len(rank.groups))]
    for number, name in enumerate(order):
        own = axis == number
        if own.any():
            yield _lane(f"{COMM}{name}", rank, records[own], at[own], instances=instances, book=book, axis=name)


def _lane(
    name: str,
    rank: RankTimeline,
    records: NDArray[np.void],
    at: Ints,
    *,
    instances: Instances,
    book: Book,
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
    named = book.names.all_of([*rank.names, "?"])
    spans["name"] = named[np.minimum(records["name"], len(rank.names))]
    spans["parent"] = spans["instance"] = spans["group"] = NOTHING
    spans["of"] = _classes(rank, records, book, axis=axis)
    if axis is not None:
        numbers = [book.groups.setdefault((g.axis, g.key, g.ranks), len(book.groups)) for g in rank.groups]
        spans["group"] = np.array([*numbers, NOTHING])[np.minimum(records["group"], len(rank.groups))]
        spans["instance"] = instances.find(rank, records)
        spans["wait_ns"] = _waits(rank, spans, instances)
    return Lane(name=name, spans=spans, records=at)


def _classes(rank: RankTimeline, records: NDArray[np.void], book: Book, *, axis: str | None) -> NDArray[np.uint8]:
    """What each record is: a ledger term where it is one."""
    classes = np.full(len(records), book.classes.number(OTHER), dtype=np.uint8)
    of_phase = np.full(256, classes[0] if len(classes) else 0, dtype=np.uint8)
    present = set(records["phase"].tolist())
    for phase, term in PHASE_TERMS.items():
        if phase in present:
            of_phase[phase] = book.classes.number(term)
    classes[:] = of_phase[records["phase"]]
    acted = (records["kind"] == Kind.ACTION) & (records["phase"] != Phase.EVALUATION)
    for number in np.unique(records["name"][acted]).tolist():
        term = ACTION_TERMS.get(rank.name(number), OTHER)
        classes[acted & (records["name"] == number)] = book.classes.number(term)
    plain = {Kind.STEP: STEP, Kind.SPAN: SPAN}
    if axis is not None:
        plain |= {Kind.COLLECTIVE: overlapped(axis), Kind.STALL: exposed_transfer(axis)}
    for kind, name in plain.items():
        of_kind = records["kind"] == kind
        if of_kind.any():
            classes[of_kind] = book.classes.number(name)
    if axis is not None and (records["kind"] == Kind.STALL).any():
        book.classes.number(exposed_wait(axis))
    return classes


def _waits(rank: RankTimeline, spans: NDArray[np.void], instances: Instances) -> Ints:
    """How long each waited for others, from its begin: until its own call turned into transfer."""
    mine = instances.parts_of[rank.rank]
    number = instances.number[mine].astype(np.int64)
    turns = instances.parts.end_ns[mine] - instances.transfer_ns[number]
    order = np.argsort(number, kind="stable")
    if not len(order):
        return np.full(len(spans), NOTHING, dtype=np.int64)
    sorted_numbers = number[order]
    place = np.minimum(np.searchsorted(sorted_numbers, spans["instance"].astype(np.int64)), len(order) - 1)
    told = (sorted_numbers[place] == spans["instance"]) & np.append(instances.splits, False)[spans["instance"]]
    waited = np.clip(turns[order][place] - spans["start_ns"], 0, spans["end_ns"] - spans["start_ns"])
    return np.where(told, waited, NOTHING)
