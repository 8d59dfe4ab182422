"""Shares of step time by rank, a row of equal length per rank."""

from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go

from traincope.analysis import Ledger, RankLedger
from traincope.figures.drawing.canvas import LINE, ROW, canvas, height_of, legend_on_the_right, named_rows
from traincope.figures.drawing.folding import by_count
from traincope.figures.drawing.labels import label
from traincope.palette import colour
from traincope.units import share

MAX_BARS = 64
"""Rows; with more ranks, neighbours share a row."""
MIN_RATIO = 0.001
THICKEST = 28
"""Largest thickness of a bar in pixels, where the legend is taller than the rows."""


def rank_shares(ledger: Ledger, stages: Mapping[int, int | None]) -> go.Figure:
    """Shares of counted step time; ranks are sorted by stage and labelled with it."""
    ranks = sorted(ledger.ranks, key=lambda rank: (stages.get(rank.rank) or 0, rank.rank))
    rows = list(_rows(ranks, stages))
    walls_ns = [sum(rank.total_wall_ns for rank in group) for _, group in rows]
    traces = [
        go.Bar(
            name=label(term),
            orientation="h",
            y=list(range(len(rows))),
            x=(values := [_share(group, term, of_ns=wall) for (_, group), wall in zip(rows, walls_ns, strict=True)]),
            marker={"color": colour(term), "line": {"width": 0}},
            customdata=[[name, share(value)] for (name, _), value in zip(rows, values, strict=True)],
            hovertemplate="%{customdata[0]}<br>%{fullData.name} %{customdata[1]}<extra></extra>",
        )
        for term in ledger.order
        if abs(ledger.share(term) or 0.0) > MIN_RATIO
    ]
    return canvas(
        traces,
        height=height_of(len(rows), legend_lines=len(traces)),
        barmode="relative",
        bargap=max(0.15, 1 - THICKEST / max(len(traces) * LINE / len(rows), ROW)),
        xaxis={"tickformat": ".0%", "title": {"text": "share of step time"}},
        yaxis=named_rows([name for name, _ in rows]),
        legend=legend_on_the_right(),
    )


def _rows(ranks: Sequence[RankLedger], stages: Mapping[int, int | None]) -> Iterator[tuple[str, Sequence[RankLedger]]]:
    fold = by_count(len(ranks), max_places=MAX_BARS)
    for place in range(len(fold)):
        first, last = fold.ends(place)
        stage, other = (stages.get(ranks[at].rank) for at in (first, last))
        prefix = "" if stage is None or stage != other else f"stage {stage}, "
        title = f"rank {ranks[first].rank}" if first == last else f"ranks {ranks[first].rank}-{ranks[last].rank}"
        yield prefix + title, ranks[first : last + 1]


def _share(ranks: Sequence[RankLedger], term: str, *, of_ns: int) -> float | None:
    known = [ns for rank in ranks if (ns := rank.total(term)) is not None]
    return sum(known) / of_ns if known and of_ns else None
