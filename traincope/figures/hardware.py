"""The GPUs over the run: when each was slowed, held at its power limit, or told of errors; a row a rank."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Fault, FaultKind
from traincope.figures.canvas import canvas, height_of, named_rows
from traincope.figures.clock import clock
from traincope.figures.happenings import clock_axis, happenings

OF_HARDWARE = frozenset(
    {
        FaultKind.THROTTLED,
        FaultKind.POWER_CAPPED,
        FaultKind.ECC_ERROR,
        FaultKind.ECC_CORRECTED,
        FaultKind.ROWS_REMAPPED,
        FaultKind.XID,
        FaultKind.GPU_LOST,
    }
)
MOST_RANKS = 64
"""Rows: the ranks of which most is told."""


def hardware_events(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Those of the stream that the GPUs' driver told."""
    return tuple(fault for fault in faults if fault.kind in OF_HARDWARE)


def hardware_over_time(faults: Sequence[Fault], *, began_ns: int, end_ns: int) -> go.Figure:
    """`hardware_events` of a run, each of one rank, on the run's clock."""
    told = [fault.ranks[0] for fault in faults]
    most = sorted(set(told), key=lambda rank: (-told.count(rank), rank))[:MOST_RANKS]
    ranks = sorted(most)
    shown = [fault for fault in faults if fault.ranks[0] in ranks]
    on = clock(began_ns, end_ns)
    return canvas(
        happenings(shown, [ranks.index(fault.ranks[0]) for fault in shown], on=on),
        height=height_of(len(ranks)),
        xaxis=clock_axis(shown, on=on, end_ns=end_ns),
        yaxis=named_rows([f"rank {rank}" for rank in ranks]),
        barmode="overlay",
    )
