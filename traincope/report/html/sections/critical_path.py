"""Critical path section: one step drawn, and all steps by term and by rank."""

from collections.abc import Iterator

from traincope.analysis import CriticalPath
from traincope.figures.ranks.critical_path import MAX_SEGMENTS, critical_path_step, fits
from traincope.palette import colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, swatch, table
from traincope.report.html.source import Source
from traincope.report.text.sections.critical_path import notes as path_notes
from traincope.units import count, duration

NAME, TITLE = "critical-path", "Critical path"
NO_STEPS = "No critical path: no step was completed by all ranks."
TOO_LONG = f"The path is not drawn: it has more than {MAX_SEGMENTS:,} segments."
PER_STEP = ("share of step time", "ms per step")
MAX_ROWS = 12
"""Rows of ranks and terms; the JSON has all."""


def critical_path(source: Source) -> Section:
    path = source.analysis.critical_path
    if path is None:
        return Section(name=NAME, title=TITLE, missing=NO_STEPS)
    if not path.steps:
        return Section(name=NAME, title=TITLE, missing=f"Unknown: {path.reason}." if path.reason else NO_STEPS)
    mean = duration(path.wall_ns / path.num_steps)
    return Section(
        name=NAME,
        title=TITLE,
        lead=f"the chain of work that sets the step time: {mean}, mean over {count(path.num_steps, 'step')}",
        body=(
            _drawn(path),
            table("By term", ("term", *PER_STEP), _terms(source, path)),
            table("By rank", ("rank", "term", *PER_STEP), _ranks(source, path), words=(0, 1)),
            notes(line.plain for line in path_notes(path)),
        ),
    )


def _drawn(path: CriticalPath) -> Html:
    if not fits(path):
        return tag("p", TOO_LONG, class_="nothing")
    caption = f"Step {path.median_step.number}, the step of median length; a wait is replaced by the work it waited for"
    return plot(critical_path_step(path.median_step), name="path", caption=caption)


def _terms(source: Source, path: CriticalPath) -> Iterator[list[Html]]:
    for term in path.terms:
        name = joined(swatch(colour(term)), term)
        yield [name, *_numbers(source, "terms", term)]
    yield [tag("strong", "step"), *_numbers(source, "wall_ns")]


def _ranks(source: Source, path: CriticalPath) -> Iterator[list[Html]]:
    """Ranks and terms, largest first."""
    parts = [(-ns, at, rank.rank, term) for at, rank in enumerate(path.ranks) for term, ns in rank.terms.items()]
    for _, at, rank, term in sorted(parts)[:MAX_ROWS]:
        numbers = _numbers(source, "ranks", at, "terms", term)
        yield [joined(str(rank)), joined(swatch(colour(term)), term), *numbers]


def _numbers(source: Source, *path: str | int) -> Iterator[Html]:
    prefix = ("critical_path", *path)
    yield source.number(*prefix, form="share", per=("critical_path", "wall_ns"))
    yield source.number(*prefix, form="milliseconds", per=("critical_path", "steps"))
