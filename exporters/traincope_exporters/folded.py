"""Time of the training threads in folded stacks, as flamegraph.pl, inferno and speedscope read them.

    fsdp;all_gather;F;forward GPT;wait 1204000
    own;F;forward GPT 5301000

One line a stack, and how many ns of complete steps, over all ranks, it took. What a thread stood still for comes under
its axis and operation, then where it was called from, then whether it was waiting for others or transfer, where that is
told. What a rank was in by itself comes under `own`, and what nothing was recorded of is `unattributed`. All lines
together are the wall time of the steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.host import Ints, Pieces, cut
from traincope.analysis.stalls import StallSplit, split_stalls
from traincope.timeline import RankTimeline, Timeline, match_instances
from traincope_exporters.exports import TextExport, require_steps
from traincope_exporters.intervals import titles

OWN = "own"
NOTHING = ("unattributed",)
WAIT, TRANSFER, EITHER = "wait", "transfer", "wait or transfer"

Stack = tuple[str, ...]


def folded(timeline: Timeline) -> Iterator[str]:
    """Lines in order. Raises RunDirectoryError where there is no complete step."""
    require_steps(timeline, export="folded")
    stacks = stack_times(timeline)
    yield from (f"{';'.join(map(_plain, stack))} {ns}\n" for stack, ns in sorted(stacks.items()) if ns)


def stack_times(timeline: Timeline) -> Mapping[Stack, int]:
    """Stack -> ns in complete steps, over all ranks; the sum is the wall time of these steps."""
    instances = match_instances(timeline)
    times: dict[Stack, int] = defaultdict(int)
    for rank in timeline.ranks:
        pieces = cut(rank, window_ends=np.empty(0, dtype=np.int64))
        split = split_stalls(rank, pieces, instances=instances)
        for stack, ns in _stacks(rank, pieces, split):
            times[stack] += ns
    return times


def _stacks(rank: RankTimeline, pieces: Pieces, split: StallSplit) -> Iterator[tuple[Stack, int]]:
    """Of one rank; the same stack may come several times."""
    calls = _calls(rank, pieces.intervals)
    own = np.flatnonzero((pieces.step >= 0) & ~pieces.stalled)
    for owner, ns in _summed(pieces.owner[own], pieces.duration_ns[own]):
        yield (OWN, *calls[owner]) if owner >= 0 else NOTHING, ns
    inside = pieces.step[split.at] >= 0
    told = ((WAIT, split.wait_ns, split.split), (TRANSFER, split.transfer_ns, split.split))
    for leaf, ns_of, chosen in (*told, (EITHER, split.transfer_ns, ~split.split)):
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
    """What each interval was begun in, outermost first, and itself; they come in order of begin."""
    stacks: list[Stack] = []
    known: dict[tuple[Stack, str], Stack] = {}
    active: list[tuple[int, Stack]] = []
    columns = zip(records["start_ns"].tolist(), records["end_ns"].tolist(), titles(rank, records), strict=True)
    for start, end, title in columns:
        active = [one for one in active if one[0] > start]
        above = active[-1][1] if active else ()
        stack = known.setdefault((above, title), (*above, title))
        stacks.append(stack)
        active.append((end, stack))
    return stacks


def _plain(frame: str) -> str:
    """Without what separates frames and lines: a name is data."""
    return "".join(
        " " if not character.isprintable() else "," if character == ";" else character for character in frame
    )


EXPORT = TextExport(
    suffix="folded", pieces=folded, hint="flamegraph.pl --countname=ns FILE > flame.svg, or speedscope.app"
)
