"""Clocks: the error bound and the drift of each rank's clock."""

from traincope.report.sections.section import Lines, Section, Table, number, rows
from traincope.report.sections.source import Source
from traincope.units import count

NAME, TITLE = "clocks", "Clocks"
UNKNOWN = "No records of any rank, so clocks are unknown."
MAX_ROWS = 64


def clocks(source: Source) -> Section:
    known = source.analysis.timeline.clocks
    shown = (
        (
            str(clock.rank),
            clock.source,
            number("clock", at, "bound_ns", form="duration"),
            number("clock", at, "drift_ppm", form="ppm"),
        )
        for at, clock in enumerate(known[:MAX_ROWS])
    )
    heads = ("rank", "source", "error bound", "drift, ppm")
    more = (f"and {count(len(known) - MAX_ROWS, 'more rank')}",) if len(known) > MAX_ROWS else ()
    return Section(
        name=NAME,
        title=TITLE,
        lead="times of two ranks compare only within these bounds",
        parts=(Table(caption=TITLE, heads=heads, rows=rows(shown), left=frozenset({0, 1})), Lines(more)),
        missing=None if known else UNKNOWN,
    )
