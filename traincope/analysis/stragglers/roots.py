"""Roots of jitter: ranks that their own host delays while their pipeline waits for them.

The direct cause of a receive's wait is the sender, which may be waiting itself. This module follows the wait from
sender to sender, instant by instant, to a rank that loads data, collects garbage, writes a checkpoint or compiles.
That rank is the root of this part of the wait, and of the jitter in it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.stalls import StallSplit
from traincope.analysis.attribution.terms import HOST_TERMS
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Ints, Numbers
from traincope.events import RECEIVE_OPERATIONS
from traincope.timeline import Instances
from traincope.timeline.intervals.painting import ranges
from traincope.topology import PIPELINE_AXIS

DELAYS = ("data_wait", "gc", "checkpoint_stall", "compile")
"""Ledger terms that delay a rank and are not work of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A rank whose own delay caused jitter on other ranks, summed over the counted steps."""

    rank: int
    term: str
    """The term that delayed it, one of DELAYS."""
    jitter_ns: int
    """The part of its peers' jitter that it caused."""
    peers: tuple[int, ...]
    """The ranks that waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Intervals in order that do not overlap. `step` is the position among the complete steps of their rank."""

    start_ns: Ints
    end_ns: Ints
    step: Numbers

    def within(self, other: "Spans") -> "Spans":
        """Return the parts of these spans that lie in the other spans."""
        first = np.searchsorted(other.end_ns, self.start_ns, side="right")
        last = np.maximum(np.searchsorted(other.start_ns, self.end_ns, side="left"), first)
        row, other_row = np.repeat(np.arange(len(first)), last - first), ranges(first, last)
        return Spans(
            start_ns=np.maximum(self.start_ns[row], other.start_ns[other_row]),
            end_ns=np.minimum(self.end_ns[row], other.end_ns[other_row]),
            step=self.step[row],
        )

    def by_step(self, count: int) -> Ints:
        """Sum the time in each step."""
        sums = np.zeros(count + 1, dtype=np.int64)
        np.add.at(sums, self.step, self.end_ns - self.start_ns)
        return sums[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSpans:
    """One rank's waits for messages by sender, and its own delays by term."""

    waits: Mapping[int, Spans]
    """Sender -> times at which this rank waited for its message."""
    delays: Mapping[str, Spans]
    """Term of DELAYS -> times at which this rank was in it."""


def wait_spans(slices: ThreadSlices, split: StallSplit, *, instances: Instances) -> WaitSpans:
    """Collect one rank's waits and delays from its slices."""
    receives = [code for code, name in enumerate(split.operations) if name in RECEIVE_OPERATIONS]
    received = split.on(PIPELINE_AXIS) & np.isin(split.operation_code, receives) & (split.instance >= 0)
    senders = np.array([channel.source for channel in instances.channels], dtype=np.int64)
    sender = senders[instances.channel[split.instance[received]]]
    at = split.at[received]
    delayed = {term: np.flatnonzero(slices.code == HOST_TERMS.index(term)) for term in DELAYS}
    return WaitSpans(
        waits={rank: _spans(slices, at[sender == rank]) for rank in np.unique(sender).tolist()},
        delays={term: _spans(slices, chosen) for term, chosen in delayed.items() if len(chosen)},
    )


def _spans(slices: ThreadSlices, at: Ints) -> Spans:
    return Spans(start_ns=slices.start_ns[at], end_ns=slices.end_ns[at], step=slices.step[at])


def jitter_roots(ledger: Ledger, wait_spans_of: Mapping[int, WaitSpans]) -> tuple[Root, ...]:
    """Find the roots of jitter, the largest first. The times of all ranks must be on one clock."""
    jitter: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for rank in ledger.ranks:
        if rank.rank in wait_spans_of:
            for root, ns in _explained(rank, wait_spans_of):
                jitter[root][rank.rank] = ns
    roots = (
        Root(rank=rank, term=term, jitter_ns=sum(of.values()), peers=tuple(sorted(of)))
        for (rank, term), of in jitter.items()
    )
    return tuple(sorted(roots, key=lambda root: (-root.jitter_ns, root.rank, root.term)))


def _explained(rank: RankLedger, wait_spans_of: Mapping[int, WaitSpans]) -> Iterator[tuple[tuple[int, str], int]]:
    """Yield the part of the rank's jitter that each root explains, limited by each step's jitter, the largest first."""
    count = len(rank.numbers)
    waited: dict[tuple[int, str], Ints] = defaultdict(lambda: np.zeros(count, dtype=np.int64))
    for sender, waits in wait_spans_of[rank.rank].waits.items():
        for root, spans in _root_delays(waits, sender, wait_spans_of, path=frozenset({rank.rank})):
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


def _root_delays(
    waits: Spans, late: int, wait_spans_of: Mapping[int, WaitSpans], *, path: frozenset[int]
) -> Iterator[tuple[tuple[int, str], Spans]]:
    """Split waits for the rank `late` by root: its own delays, or the delays of the ranks that it waited for."""
    if late not in wait_spans_of or late in path or not len(waits.start_ns):
        return
    for term, delays in wait_spans_of[late].delays.items():
        yield (late, term), waits.within(delays)
    for sender, further in wait_spans_of[late].waits.items():
        yield from _root_delays(waits.within(further), sender, wait_spans_of, path=path | {late})
