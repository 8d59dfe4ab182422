"""Runs that consist only of kernel traces."""

from dataclasses import replace

from tests.timeline.build import rank, run
from traincope.store.side_tables.traces import Trace
from traincope.timeline import Timeline, Traces, build_timeline


def traced(*traces: Trace, device: str | None = None) -> Timeline:
    """Build a run whose ranks have these traces and no records."""
    numbers = sorted({trace.info.rank or 0 for trace in traces})
    by_rank = {number: tuple(trace for trace in traces if trace.info.rank == number) for number in numbers}
    ranks = [rank(number) for number in numbers]
    if device is not None:
        ranks = [
            replace(recorded_rank, info=replace(recorded_rank.info, device={"name": device, "count": 1}))
            for recorded_rank in ranks
        ]
    records = run(*ranks)
    records = replace(records, info=replace(records.info, imported=True))
    return replace(build_timeline(records), traces=Traces(ranks=by_rank))
