"""What each rank did with its steps: a row a rank, all rows alike long."""

from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go

from traincope.analysis import Ledger, RankLedger
from traincope.figures.canvas import LINE, ROW, beside, canvas, height_of, named_rows
from traincope.figures.folding import by_count
from traincope.figures.labels import label
from traincope.palette import colour
from traincope.units import share

MOST = 64
"""Rows; more ranks share rows, neighbours together."""
LEAST = 0.001
THICKEST = 28
"""Pixels of a bar, where the legend needs more room than the rows."""


def rank_shares(ledger: Ledger, *, stages: Mapping[int, int | None]) -> go.Figure:
    """Shares of the counted steps' time; ranks in order of their stage, which is named beside them."""
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
        if abs(ledger.share(term) or 0.0) > LEAST
    ]
    return canvas(
        traces,
        height=height_of(len(rows), beside=len(traces)),
        barmode="relative",
        bargap=max(0.15, 1 - THICKEST / max(len(traces) * LINE / len(rows), ROW)),
        xaxis={"tickformat": ".0%", "title": {"text": "share of step time"}},
        yaxis=named_rows([name for name, _ in rows]),
        legend=beside(),
    )


def _rows(ranks: Sequence[RankLedger], stages: Mapping[int, int | None]) -> Iterator[tuple[str, Sequence[RankLedger]]]:
    fold = by_count(len(ranks), most=MOST)
    for place in range(len(fold)):
        first, last = fold.ends(place)
        stage, other = (stages.get(ranks[at].rank) for at in (first, last))
        beside = "" if stage is None or stage != other else f"stage {stage}, "
        which = f"rank {ranks[first].rank}" if first == last else f"ranks {ranks[first].rank}-{ranks[last].rank}"
        yield beside + which, ranks[first : last + 1]


def _share(ranks: Sequence[RankLedger], term: str, *, of_ns: int) -> float | None:
    known = [ns for rank in ranks if (ns := rank.total(term)) is not None]
    return sum(known) / of_ns if known and of_ns else None
