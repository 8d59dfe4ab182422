"""Export of the training threads' time as folded stacks, for flamegraph.pl, inferno and speedscope.

    fsdp;all_gather;F;forward GPT;wait 1204000
    own;F;forward GPT 5301000

One line per stack, with its ns in complete steps over all ranks. A stall is listed under its axis and operation, then
its call stack, then `wait` or `transfer` if they can be separated. Work of the rank itself is under "own"; time without
an event is `unattributed`. The sum of all lines is the wall time of the steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.stalls import StallSplit
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.context import Context
from traincope.arrays import Ints
from traincope.report.exports import TextExport, require_steps
from traincope.timeline import RankTimeline, Timeline
from traincope_exporters.traces.intervals import titles

OWN_WORK = "own"
UNATTRIBUTED = ("unattributed",)
WAIT, TRANSFER, EITHER = "wait", "transfer", "wait or transfer"

Stack = tuple[str, ...]


def folded(timeline: Timeline) -> Iterator[str]:
    """Lines in order. Raises RunDirectoryError if the run has no complete step."""
    require_steps(timeline, export="folded")
    stacks = stack_times(timeline)
    yield from (f"{';'.join(map(_plain, stack))} {ns}\n" for stack, ns in sorted(stacks.items()) if ns)


def stack_times(timeline: Timeline) -> Mapping[Stack, int]:
    """Stack -> ns in complete steps, over all ranks. The sum is the wall time of these steps."""
    context = Context(timeline)
    times: dict[Stack, int] = defaultdict(int)
    for rank in timeline.ranks:
        pieces, split = context.slices(rank)
        for stack, ns in _stacks(rank, pieces, split):
            times[stack] += ns
    return times


def _stacks(rank: RankTimeline, pieces: ThreadSlices, split: StallSplit) -> Iterator[tuple[Stack, int]]:
    """Stacks of one rank with their times. A stack may come several times."""
    calls = _calls(rank, pieces.intervals)
    computing = np.flatnonzero((pieces.step >= 0) & ~pieces.stalled)
    for owner, ns in _summed(pieces.owner[computing], pieces.duration_ns[computing]):
        yield (OWN_WORK, *calls[owner]) if owner >= 0 else UNATTRIBUTED, ns
    inside = pieces.step[split.at] >= 0
    split_leaves = ((WAIT, split.wait_ns, split.split), (TRANSFER, split.transfer_ns, split.split))
    for leaf, ns_of, chosen in (*split_leaves, (EITHER, split.transfer_ns, ~split.split)):
        rows = np.flatnonzero(inside & chosen)
        for owner, ns in _summed(pieces.owner[split.at[rows]], ns_of[rows]):
            record = pieces.intervals[owner]
            operation = rank.name(int(record["name"]))
            yield (rank.axis(int(record["group"])), operation, *calls[owner][:-1], leaf), ns


def _summed(owners: NDArray[np.int32], ns: Ints) -> Iterator[tuple[int, int]]:
    distinct, place = np.unique(owners, return_inverse=True)
    sums = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(sums, place, ns)
    yield from zip(distinct.tolist(), sums.tolist(), strict=True)


def _calls(rank: RankTimeline, records: NDArray[np.void]) -> list[Stack]:
    """Call stack of each interval, outermost first, including itself. The intervals come in order of start."""
    stacks: list[Stack] = []
    known: dict[tuple[Stack, str], Stack] = {}
    active: list[tuple[int, Stack]] = []
    columns = zip(records["start_ns"].tolist(), records["end_ns"].tolist(), titles(rank, records), strict=True)
    for start, end, title in columns:
        active = [call for call in active if call[0] > start]
        above = active[-1][1] if active else ()
        stack = known.setdefault((above, title), (*above, title))
        stacks.append(stack)
        active.append((end, stack))
    return stacks


def _plain(frame: str) -> str:
    """Replace the characters that separate frames and lines. Names may hold anything."""
    return "".join(
        " " if not character.isprintable() else "," if character == ";" else character for character in frame
    )


EXPORT = TextExport(
    suffix="folded", pieces=folded, hint="flamegraph.pl --countname=ns FILE > flame.svg, or speedscope.app"
)
