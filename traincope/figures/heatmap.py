"""Ranks x steps: whose own work is long, and since when. Thousands of ranks fold, and the worst of each fold shows."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import OwnWork
from traincope.figures.canvas import canvas, height_of, named_rows, step_axis
from traincope.figures.folding import Floats, by_count, by_name
from traincope.figures.labels import label
from traincope.figures.scales import around
from traincope.units import milliseconds, share

MOST_ROWS, MOST_COLUMNS = 64, 240
WIDEST = 0.25
"""Excess at which a cell is as red as it gets, where none is larger; noise of a few percent stays pale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    rows: range
    """Positions among the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    told: str
    where: str | None
    """Its worst step and rank; None where no step was complete."""


def rank_heatmap(work: OwnWork) -> go.Figure:
    """Each rank's own work over the median of its peers in that step, less 1.

    Up to 64 ranks have rows of their own; more are drawn by host, and more hosts than that by neighbours.
    Of ranks and steps that share a cell the one with the largest excess is shown, and named on hovering; a cell's
    `customdata` is that step and that rank, as `12 3` (a browser tells no list of a cell that is clicked).
    """
    rows = _rows(work)
    fold = by_count(len(work.steps), most=MOST_COLUMNS)
    cells = np.stack([fold.most(np.fmax.reduce(work.excess_ratio[row.rows], axis=0)) for row in rows])
    told = [[_told(work, row, range(*fold.borders[at : at + 2])) for at in range(len(fold))] for row in rows]
    limit = max(WIDEST, float(np.nanquantile(np.abs(cells), 0.995))) if np.isfinite(cells).any() else WIDEST
    trace = go.Heatmap(
        z=cells,
        x=work.steps[fold.starts],
        y=list(range(len(rows))),
        text=[[cell.told for cell in row] for row in told],
        customdata=[[cell.where for cell in row] for row in told],
        colorscale=around(),
        zmin=-limit,
        zmax=limit,
        hoverongaps=False,
        colorbar={"title": {"text": "over its peers"}, "tickformat": "+.0%", "thickness": 12},
        hovertemplate="%{text}<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(rows), beside=8),
        xaxis={**step_axis(work.steps.tolist()), "showgrid": False, "zeroline": False},
        yaxis=named_rows([row.name for row in rows]),
    )


def _rows(work: OwnWork) -> list[_Row]:
    ranks = work.ranks
    if len(ranks) <= MOST_ROWS:
        return [_Row(name=f"rank {rank}", rows=range(at, at + 1)) for at, rank in enumerate(ranks)]
    hosts = by_name(work.hosts)
    if 1 < len(hosts) <= MOST_ROWS:
        return [
            _Row(name=label(work.hosts[at], most=24), rows=range(*hosts.borders[place : place + 2]))
            for place, at in enumerate(hosts.starts)
        ]
    fold = by_count(len(ranks), most=MOST_ROWS)
    return [
        _Row(name=f"ranks {ranks[at]}-{ranks[fold.ends(place)[1]]}", rows=range(*fold.borders[place : place + 2]))
        for place, at in enumerate(fold.starts)
    ]


def _told(work: OwnWork, row: _Row, columns: range) -> _Cell:
    excess: Floats = work.excess_ratio[row.rows.start : row.rows.stop, columns.start : columns.stop]
    if not np.isfinite(excess).any():
        return _Cell(told="no complete step", where=None)
    at, column = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
    rank, step = work.ranks[row.rows[int(at)]], int(work.steps[columns[int(column)]])
    own = milliseconds(float(work.own_ns[row.rows[int(at)], columns[int(column)]]))
    worst = "" if excess.size == 1 else "<br>the worst of " + f"{excess.size:,} here"
    over = _signed(float(excess[at, column]))
    told = f"rank {rank}, step {step}<br>{own} ms of own work, {over} its peers{worst}"
    return _Cell(told=told, where=f"{step} {rank}")


def _signed(excess: float) -> str:
    return f"{share(abs(excess))} {'over' if excess >= 0 else 'under'}"
