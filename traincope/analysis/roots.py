"""Jitter whose root is known: a rank delayed by its own host, while its pipeline waited for it.

A receive's wait has a direct cause, the sender, which may be waiting itself. Followed from sender
to sender, instant by instant, it ends at a rank that was fetching data, collecting garbage,
writing a checkpoint or compiling: that rank is the root of so much of the waiting, and as far as
the waiting is jitter, of that.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.host import Ints, Numbers, Pieces
from traincope.analysis.ledger import Ledger, RankLedger
from traincope.analysis.stalls import StallSplit
from traincope.analysis.terms import HOST_TERMS
from traincope.events import RECEIVE_OPERATIONS
from traincope.timeline import Instances
from traincope.timeline.painting import ranges
from traincope.topology import PIPELINE_AXIS

DELAYS = ("data_wait", "gc", "checkpoint_stall", "compile")
"""Ledger terms that delay a rank and are no work of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A rank whose own delay was others' jitter, over the counted steps."""

    rank: int
    term: str
    """What delayed it, one of DELAYS."""
    jitter_ns: int
    """So much of its peers' jitter."""
    peers: tuple[int, ...]
    """Those that waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Intervals in order that do not overlap; `step` is a position among the complete steps of whose time it is."""

    start_ns: Ints
    end_ns: Ints
    step: Numbers

    def within(self, other: "Spans") -> "Spans":
        """The parts of these that lie in the others."""
        first = np.searchsorted(other.end_ns, self.start_ns, side="right")
        last = np.maximum(np.searchsorted(other.start_ns, self.end_ns, side="left"), first)
        mine, theirs = np.repeat(np.arange(len(first)), last - first), ranges(first, last)
        return Spans(
            start_ns=np.maximum(self.start_ns[mine], other.start_ns[theirs]),
            end_ns=np.minimum(self.end_ns[mine], other.end_ns[theirs]),
            step=self.step[mine],
        )

    def by_step(self, count: int) -> Ints:
        """Time in each step."""
        sums = np.zeros(count + 1, dtype=np.int64)
        np.add.at(sums, self.step, self.end_ns - self.start_ns)
        return sums[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What of a rank's time says who waited for whom."""

    waits: Mapping[int, Spans]
    """Rank -> when this one waited for its message."""
    delays: Mapping[str, Spans]
    """Term of DELAYS -> when it was this rank's own time."""


def course(pieces: Pieces, split: StallSplit, *, instances: Instances) -> Course:
    """One rank's, from its pieces."""
    receives = [code for code, name in enumerate(split.operations) if name in RECEIVE_OPERATIONS]
    received = split.on(PIPELINE_AXIS) & np.isin(split.operation_code, receives) & (split.instance >= 0)
    senders = np.array([channel.source for channel in instances.channels], dtype=np.int64)
    sender = senders[instances.channel[split.instance[received]]]
    at = split.at[received]
    delayed = {term: np.flatnonzero(pieces.code == HOST_TERMS.index(term)) for term in DELAYS}
    return Course(
        waits={rank: _spans(pieces, at[sender == rank]) for rank in np.unique(sender).tolist()},
        delays={term: _spans(pieces, chosen) for term, chosen in delayed.items() if len(chosen)},
    )


def _spans(pieces: Pieces, at: Ints) -> Spans:
    return Spans(start_ns=pieces.start_ns[at], end_ns=pieces.end_ns[at], step=pieces.step[at])


def jitter_roots(ledger: Ledger, courses: Mapping[int, Course]) -> tuple[Root, ...]:
    """The largest first. The times of all ranks must be on one clock."""
    jitter: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for rank in ledger.ranks:
        if rank.rank in courses:
            for root, ns in _explained(rank, courses):
                jitter[root][rank.rank] = ns
    roots = (
        Root(rank=rank, term=term, jitter_ns=sum(of.values()), peers=tuple(sorted(of)))
        for (rank, term), of in jitter.items()
    )
    return tuple(sorted(roots, key=lambda root: (-root.jitter_ns, root.rank, root.term)))


def _explained(rank: RankLedger, courses: Mapping[int, Course]) -> Iterator[tuple[tuple[int, str], int]]:
    """How much of the rank's jitter each root explains: never more than there is in a step, the largest first."""
    count = len(rank.numbers)
    waited: dict[tuple[int, str], Ints] = defaultdict(lambda: np.zeros(count, dtype=np.int64))
    for sender, waits in courses[rank.rank].waits.items():
        for root, spans in _followed(waits, sender, courses, path=frozenset({rank.rank})):
            waited[root] += np.where(rank.counted, spans.by_step(count), 0)
    left = np.maximum(_jitter(rank), 0)
    for root, ns in sorted(waited.items(), key=lambda pair: -int(pair[1].sum())):
        part = np.minimum(ns, left)
        left = left - part
        if part.any():
            yield root, int(part.sum())


def _jitter(rank: RankLedger) -> Ints:
    jitter = rank.terms.get("bubble.jitter")
    return np.zeros_like(rank.wall_ns) if jitter is None else jitter


def _followed(
    waits: Spans, holder: int, courses: Mapping[int, Course], *, path: frozenset[int]
) -> Iterator[tuple[tuple[int, str], Spans]]:
    """While `holder` was waited for: what delayed it, or whom it waited for itself."""
    if holder not in courses or holder in path or not len(waits.start_ns):
        return
    for term, delays in courses[holder].delays.items():
        yield (holder, term), waits.within(delays)
    for sender, further in courses[holder].waits.items():
        yield from _followed(waits.within(further), sender, courses, path=path | {holder})
