"""Faults and events on the clock of the run: a row per kind, faults in red, other events in grey."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Fault
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.clock import clock
from traincope.figures.run.fault_markers import clock_axis, fault_markers

MAX_FAULTS = 2_000
"""Markers in the figure; faults take precedence over events, earlier over later ones."""


def fault_timeline(faults: Sequence[Fault], *, began_ns: int, end_ns: int) -> go.Figure:
    """Faults and events between the run's begin and end."""
    first = sorted(faults, key=lambda fault: (fault.is_mark, fault.at_ns))[:MAX_FAULTS]
    shown = sorted(first, key=lambda fault: fault.at_ns)
    kinds = list(dict.fromkeys(fault.kind for fault in shown))
    on = clock(began_ns, end_ns)
    return canvas(
        fault_markers(shown, [kinds.index(fault.kind) for fault in shown], on=on),
        height=height_of(len(kinds)),
        xaxis=clock_axis(shown, on=on, end_ns=end_ns),
        yaxis=named_rows([kind.value.replace("_", " ") for kind in kinds]),
        barmode="overlay",
    )
