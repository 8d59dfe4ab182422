"""The critical path: one step drawn, and all steps by term and by rank."""

from collections.abc import Iterator

from traincope.analysis.critical_path import MAX_SEGMENTS, CriticalPath
from traincope.report.sections.section import (
    Drawing,
    Lines,
    Link,
    Number,
    On,
    Part,
    Section,
    Table,
    Term,
    Words,
    number,
    rows,
    separated,
)
from traincope.report.sections.source import Source
from traincope.units import count, duration

NAME, TITLE = "critical-path", "Critical path"
MAX_RANKS = 2
"""Ranks named per term."""
MAX_ROWS = 40
"""Rows of ranks and terms; the JSON has all."""
MIN_SHARE = 0.001
"""Share of step time below which a term has no row."""
STEP_TIME = ("critical_path", "wall_ns")
PER_STEP = ("share", "ms per step")


def critical_path(source: Source) -> Section:
    path = source.analysis.critical_path
    if path is None or not path.num_steps:
        why = None if path is None else path.reason
        return Section(name=NAME, title=TITLE, missing=f"Unknown: {why or _why_none(source)}.")
    step = path.median_step.number
    return Section(
        name=NAME,
        title=TITLE,
        lead=f"what the end of a step waited for: mean {duration(path.wall_ns / path.num_steps)} over "
        f"{count(path.num_steps, 'step')}",
        parts=(
            _drawn(path),
            *(_by_term(path, on=on) for on in (On.CONSOLE, On.SCREEN)),
            Lines(tuple(_limits(path))),
            Table(
                caption="By rank and term, shares of step time",
                heads=("rank", "term", *PER_STEP),
                rows=rows(_rank(*part) for part in _parts(path)[:MAX_ROWS]),
                left=frozenset({0, 1}),
                on=On.SCREEN,
            ),
        ),
        links=(Link(f"step {step} on the timeline", page="timeline", step=step),),
    )


def _why_none(source: Source) -> str:
    if source.document["run"]["imported"]:
        return "the imported traces have no marks of steps, or the error of their clocks is unknown"
    return "no step was completed by all ranks"


def _drawn(path: CriticalPath) -> Part:
    if len(path.median_step.segments) > MAX_SEGMENTS:
        return Lines((f"The path is not drawn: it has more than {MAX_SEGMENTS:,} segments.",), on=On.SCREEN)
    caption = f"Step {path.median_step.number}, the step of median length; a wait is replaced by the work it waited for"
    return Drawing(figure="path", of=(path.median_step,), caption=caption)


def _by_term(path: CriticalPath, *, on: On) -> Table:
    """A console leaves out small terms; a screen has all, and their sum."""
    least_ns = MIN_SHARE * path.wall_ns if on is On.CONSOLE else 0
    terms = rows(_term(path, term) for term, ns in path.terms.items() if ns >= least_ns)
    return Table(
        caption="By term, shares of step time",
        heads=("term", *PER_STEP, "most on ranks"),
        rows=terms if on is On.CONSOLE else (*terms, ("step", *_numbers("wall_ns"), "")),
        on=on,
    )


def _term(path: CriticalPath, term: str) -> Iterator[Words]:
    yield Term(term)
    yield from _numbers("terms", term)
    holders = [(at, rank) for _, at, rank, each in _parts(path) if each == term][:MAX_RANKS]
    yield separated(((f"{rank}: ", _numbers("ranks", at, "terms", term)[0]) for at, rank in holders), ", ")


def _rank(_: int, at: int, rank: int, term: str) -> tuple[Words, ...]:
    return (str(rank), Term(term), *_numbers("ranks", at, "terms", term))


def _parts(path: CriticalPath) -> list[tuple[int, int, int, str]]:
    """(-ns, position, rank, term) of each part of the path, largest first."""
    return sorted((-ns, at, rank.rank, term) for at, rank in enumerate(path.ranks) for term, ns in rank.terms.items())


def _numbers(*path: str | int) -> tuple[Number, Number]:
    """The part of step time at `path`, as a share and in ms per step."""
    share = number("critical_path", *path, form="share", per=STEP_TIME)
    return share, number("critical_path", *path, form="milliseconds", per=("critical_path", "steps"))


def _limits(path: CriticalPath) -> Iterator[str]:
    if path.untold_ns >= MIN_SHARE * path.wall_ns:
        per_step = duration(path.untold_ns / path.num_steps)
        yield f"{per_step} per step of its transfers may be wait: the records cannot separate them"
    if path.clock_error_ns is None:
        yield "the offset between the ranks' clocks is unknown"
    elif path.clock_error_ns:
        yield f"the clocks of the hosts may differ by {duration(path.clock_error_ns)}"
