"""Advice about copies that nothing hides, by the kind of copy that takes longest in the traces."""

from collections import Counter
from collections.abc import Collection

import numpy as np

from traincope.store.side_tables.traces import MEMORY
from traincope.timeline import Timeline

ANY_COPY = "Copy from pinned memory on a separate stream, earlier and less."
BY_KIND = (
    ("pageable", ANY_COPY),
    ("pinned", "The copied memory is pinned already: copy on a separate stream, earlier and less."),
    ("ptop", "Copy between GPUs on a separate stream, earlier and less."),
    ("dtod", "Copy less within the GPU's memory: write results where they are needed, and avoid changes of layout."),
    ("memset", "Clear less memory: allocate without zeros what is written next, and set gradients to None."),
)
"""Word in the names of copies -> the advice about them. The first that occurs decides."""


def copy_advice(timeline: Timeline, ranks: Collection[int] = ()) -> str:
    """Return the advice about the copies of imported traces. `ranks`: those that lose; empty for all."""
    lasted_ns: Counter[str] = Counter()
    for rank, traces in timeline.traces.ranks.items():
        for trace in traces if not ranks or rank in ranks else ():
            rows = np.flatnonzero(trace.of_category(*MEMORY))
            sums = np.zeros(len(trace.names), dtype=np.int64)
            np.add.at(sums, trace.name[rows], trace.duration_ns[rows])
            for number in np.flatnonzero(sums).tolist():
                lasted_ns[_advice(trace.names[number])] += int(sums[number])
    return lasted_ns.most_common(1)[0][0] if lasted_ns else ANY_COPY


def _advice(name: str) -> str:
    return next((advice for word, advice in BY_KIND if word in name.lower()), ANY_COPY)
