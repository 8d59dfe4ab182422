"""The critical path as a part of the document."""

from collections import defaultdict

from traincope.analysis import CriticalPath, StepPath
from traincope.report import schema

MOST_SEGMENTS = 2_000
"""More than this nobody reads in a document."""


def critical_path(path: CriticalPath) -> schema.CriticalPath:
    shares = path.shares()
    terms: dict[str, int] = defaultdict(int)
    ranks: dict[int, dict[str, int]] = defaultdict(dict)
    for (rank, term), ns in shares.items():
        terms[term] += ns
        ranks[rank][term] = ns
    shown = path.median_step if path.steps else None
    return schema.CriticalPath(
        steps=len(path.steps),
        wall_ns=path.wall_ns,
        terms=dict(sorted(terms.items(), key=lambda item: (-item[1], item[0]))),
        ranks=[
            schema.RankPath(rank=rank, ns=sum(of.values()), terms=of)
            for rank, of in sorted(ranks.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        ],
        untold_ns=path.untold_ns,
        clock_error_ns=path.clock_error_ns,
        reason=path.reason,
        step=None if shown is None else shown.number,
        segments=None if shown is None or len(shown.segments) > MOST_SEGMENTS else _segments(shown),
    )


def _segments(step: StepPath) -> list[schema.Segment]:
    return [
        schema.Segment(
            rank=segment.rank,
            term=segment.term,
            start_ns=segment.start_ns - step.start_ns,
            duration_ns=segment.length_ns,
        )
        for segment in step.segments
    ]
