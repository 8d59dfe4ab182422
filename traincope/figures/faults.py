"""What happened, on the clock of the run: a row a kind, faults in red, marks beside them in grey."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Fault
from traincope.figures.canvas import canvas, height_of, named_rows
from traincope.figures.clock import clock
from traincope.figures.happenings import clock_axis, happenings

MOST = 2_000
"""Marks on the figure: what went wrong comes before marks, what came first before what came later."""


def fault_timeline(faults: Sequence[Fault], *, began_ns: int, end_ns: int) -> go.Figure:
    """`began_ns` and `end_ns` of the run."""
    first = sorted(faults, key=lambda fault: (fault.is_mark, fault.at_ns))[:MOST]
    shown = sorted(first, key=lambda fault: fault.at_ns)
    kinds = list(dict.fromkeys(fault.kind for fault in shown))
    on = clock(began_ns, end_ns)
    return canvas(
        happenings(shown, [kinds.index(fault.kind) for fault in shown], on=on),
        height=height_of(len(kinds)),
        xaxis=clock_axis(shown, on=on, end_ns=end_ns),
        yaxis=named_rows([kind.value.replace("_", " ") for kind in kinds]),
        barmode="overlay",
    )
