"""GPU events over the run: throttling, power limits and errors, a row per rank."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Fault
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.clock import clock
from traincope.figures.run.fault_markers import clock_axis, fault_markers

MAX_RANKS = 64
"""Rows: the ranks with the most events."""


def hardware_over_time(faults: Sequence[Fault], began_ns: int, end_ns: int) -> go.Figure:
    """Faults of the kinds `OF_HARDWARE`, each of one rank, on the run's clock."""
    affected = [fault.ranks[0] for fault in faults]
    worst = sorted(set(affected), key=lambda rank: (-affected.count(rank), rank))[:MAX_RANKS]
    ranks = sorted(worst)
    shown = [fault for fault in faults if fault.ranks[0] in ranks]
    on = clock(began_ns, end_ns)
    return canvas(
        fault_markers(shown, [ranks.index(fault.ranks[0]) for fault in shown], on=on),
        height=height_of(len(ranks)),
        xaxis=clock_axis(shown, on=on, end_ns=end_ns),
        yaxis=named_rows([f"rank {rank}" for rank in ranks]),
        barmode="overlay",
    )
