"""Heat map of own work, ranks x steps; thousands of ranks are folded and show the worst of each fold."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import OwnWork
from traincope.arrays import Floats
from traincope.figures.drawing.canvas import canvas, height_of, named_rows, step_axis
from traincope.figures.drawing.folding import by_count, by_name
from traincope.figures.drawing.labels import label
from traincope.figures.drawing.scales import around
from traincope.units import milliseconds, share

MAX_ROWS, MAX_COLUMNS = 64, 240
WIDEST = 0.25
"""Smallest range of the colours; noise of a few percent stays pale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    rows: range
    """Positions among the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    hover: str
    worst: str | None
    """The worst step and rank, `12 3`; None where no step was complete."""


def rank_heatmap(work: OwnWork) -> go.Figure:
    """Each rank's own work over the median of its peers in that step, minus 1.

    Up to 64 ranks have a row each; more are grouped by host, and more hosts than that by neighbouring ranks.
    A cell of several ranks and steps shows the largest excess and names it on hovering. Its `customdata` is that step
    and rank, `12 3` (the browser does not pass lists for a clicked cell).
    """
    rows = _rows(work)
    fold = by_count(len(work.steps), max_places=MAX_COLUMNS)
    cells = np.stack([fold.max(np.fmax.reduce(work.excess_ratio[row.rows], axis=0)) for row in rows])
    texts = [[_cell(work, row, range(*fold.borders[at : at + 2])) for at in range(len(fold))] for row in rows]
    limit = max(WIDEST, float(np.nanquantile(np.abs(cells), 0.995))) if np.isfinite(cells).any() else WIDEST
    trace = go.Heatmap(
        z=cells,
        x=work.steps[fold.starts],
        y=list(range(len(rows))),
        text=[[cell.hover for cell in row] for row in texts],
        customdata=[[cell.worst for cell in row] for row in texts],
        colorscale=around(),
        zmin=-limit,
        zmax=limit,
        hoverongaps=False,
        colorbar={"title": {"text": "own work vs peers"}, "tickformat": "+.0%", "thickness": 12},
        hovertemplate="%{text}<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(rows), legend_lines=8),
        xaxis={**step_axis(work.steps.tolist()), "showgrid": False, "zeroline": False},
        yaxis=named_rows([row.name for row in rows]),
    )


def _rows(work: OwnWork) -> list[_Row]:
    ranks = work.ranks
    if len(ranks) <= MAX_ROWS:
        return [_Row(name=f"rank {rank}", rows=range(at, at + 1)) for at, rank in enumerate(ranks)]
    hosts = by_name(work.hosts)
    if 1 < len(hosts) <= MAX_ROWS:
        return [
            _Row(name=label(work.hosts[at], max_length=24), rows=range(*hosts.borders[place : place + 2]))
            for place, at in enumerate(hosts.starts)
        ]
    fold = by_count(len(ranks), max_places=MAX_ROWS)
    return [
        _Row(name=f"ranks {ranks[at]}-{ranks[fold.ends(place)[1]]}", rows=range(*fold.borders[place : place + 2]))
        for place, at in enumerate(fold.starts)
    ]


def _cell(work: OwnWork, row: _Row, columns: range) -> _Cell:
    excess: Floats = work.excess_ratio[row.rows.start : row.rows.stop, columns.start : columns.stop]
    if not np.isfinite(excess).any():
        return _Cell(hover="no complete step", worst=None)
    at, column = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
    rank, step = work.ranks[row.rows[int(at)]], int(work.steps[columns[int(column)]])
    work_ms = milliseconds(float(work.own_ns[row.rows[int(at)], columns[int(column)]]))
    worst = "" if excess.size == 1 else f"<br>worst of {excess.size:,} in this cell"
    over = _signed(float(excess[at, column]))
    hover = f"rank {rank}, step {step}<br>own work {work_ms} ms, {over} its peers{worst}"
    return _Cell(hover=hover, worst=f"{step} {rank}")


def _signed(excess: float) -> str:
    return f"{share(abs(excess))} {'more than' if excess >= 0 else 'less than'}"
