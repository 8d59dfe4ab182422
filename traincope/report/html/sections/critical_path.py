"""What the end of a step waited for: one step drawn, and all of them by term and by rank."""

from collections.abc import Iterator

from traincope.analysis import CriticalPath
from traincope.figures.critical_path import MOST_SEGMENTS, critical_path_step, fits
from traincope.palette import colour
from traincope.report.critical_path import notes as path_notes
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, swatch, table
from traincope.report.html.source import Source
from traincope.units import count, duration

NAME, TITLE = "critical-path", "Critical path"
NO_STEPS = "Unknown: no step was completed by all ranks."
TOO_LONG = f"No step is drawn: its path has more than {MOST_SEGMENTS:,} parts."
MOST_ROWS = 12
"""Ranks and their terms; what is left out is in the JSON."""


def critical_path(source: Source) -> Section:
    found, path = source.document["critical_path"], source.analysis.critical_path
    if found is None or path is None:
        return Section(name=NAME, title=TITLE, missing=NO_STEPS)
    if not path.steps:
        return Section(name=NAME, title=TITLE, missing=f"Unknown: {found['reason']}." if found["reason"] else NO_STEPS)
    mean = duration(found["wall_ns"] / found["steps"])
    return Section(
        name=NAME,
        title=TITLE,
        lead=f"what the end of a step waits for: {mean}, mean over {count(found['steps'], 'step')}",
        body=(
            _drawn(path),
            table("By term", ("term", "share of step", "ms a step"), _terms(source)),
            table("By rank", ("rank", "term", "share of step", "ms a step"), _ranks(source), words=(0, 1)),
            notes(line.plain for line in path_notes(found)),
        ),
    )


def _drawn(path: CriticalPath) -> Html:
    if not fits(path):
        return tag("p", TOO_LONG, class_="nothing")
    caption = f"Step {path.median_step.number}, of median length, from rank to rank; waiting is what was waited for"
    return plot(critical_path_step(path.median_step), name="path", caption=caption)


def _terms(source: Source) -> Iterator[list[Html]]:
    found = source.document["critical_path"]
    for term in found["terms"] if found else ():
        yield [joined(swatch(colour(term)), term), *_numbers(source, "terms", term)]
    yield [tag("strong", "step"), *_numbers(source, "wall_ns")]


def _ranks(source: Source) -> Iterator[list[Html]]:
    """The largest first."""
    found = source.document["critical_path"]
    ranks = enumerate(found["ranks"] if found else ())
    parts = [(-ns, at, rank["rank"], term) for at, rank in ranks for term, ns in rank["terms"].items()]
    for _, at, rank, term in sorted(parts)[:MOST_ROWS]:
        numbers = _numbers(source, "ranks", at, "terms", term)
        yield [joined(str(rank)), joined(swatch(colour(term)), term), *numbers]


def _numbers(source: Source, *path: str | int) -> Iterator[Html]:
    own = ("critical_path", *path)
    yield source.number(*own, form="share", per=("critical_path", "wall_ns"))
    yield source.number(*own, form="milliseconds", per=("critical_path", "steps"))
