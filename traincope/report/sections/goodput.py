"""Goodput: the productive share of the job's time, the parts of the rest, all attempts, and what saving costs."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from traincope.analysis import FaultKind, Goodput
from traincope.analysis.efficiency.background_saves import BackgroundSaves
from traincope.report.schema import Fault
from traincope.report.sections.section import Drawing, Lines, Section, Table, Term, Words, number, rows
from traincope.report.sections.source import Source
from traincope.store import Attempt
from traincope.units import count, duration, numbers, share

NAME, TITLE = "goodput", "Goodput"
UNKNOWN = "Unknown: no attempt reached a step, or imported traces show a part of the job only."
MAX_ATTEMPTS = 8
"""Attempts that are listed, the last ones; JSON has all."""
WHOLE_PER_PART = 1000
"""A part below 1/1000 of the job's time has no row."""
ELAPSED = ("goodput", "elapsed_ns")


def goodput(source: Source) -> Section:
    job = source.analysis.goodput
    if job is None:
        return Section(name=NAME, title=TITLE, missing=UNKNOWN)
    return Section(
        name=NAME,
        title=TITLE,
        lead=_lead(job),
        parts=(
            Drawing(
                figure="job", of=(job,), caption="Time of the whole job by part, and its attempts on the job's clock"
            ),
            Table(
                caption="Parts of the job's time",
                heads=("part", "time", "share"),
                rows=rows(
                    _row(part, words)
                    for part, words in _parts(job).items()
                    if (ns := job.parts.get(part)) and ns * WHOLE_PER_PART >= job.elapsed_ns
                ),
            ),
            Lines(tuple(_attempts(job.attempts, source.document["faults"]))),
            Lines(tuple(_costs(source))),
        ),
    )


def _lead(job: Goodput) -> Words:
    elapsed = number(*ELAPSED, form="duration")
    if job.productive_ratio is not None:
        return (number("goodput", "productive_ratio", form="share"), " of ", elapsed, " was productive")
    took = number("goodput", "steps_ns", form="duration")
    return (f"unknown: {job.reason}; {count(job.steps_done, 'step')} took ", took, " of ", elapsed)


def _parts(job: Goodput) -> dict[str, str]:
    """Part of the job's time -> its words."""
    return {
        "productive": "productive steps",
        "startup": "start-up",
        "restart": "restarts",
        "checkpoint_stall": "checkpoint stalls",
        "evaluation": "evaluation",
        "lost": count(job.steps_lost, "lost step"),
        "rolled_back": count(job.steps_rolled_back, "rolled back step"),
        "skipped": count(job.steps_skipped, "skipped step"),
        "other": "outside complete steps",
    }


def _row(part: str, words: str) -> Iterator[Words]:
    yield Term(part, words)
    yield number("goodput", f"{part}_ns", form="duration")
    yield number("goodput", f"{part}_ns", form="share", per=ELAPSED)


def _attempts(attempts: Sequence[Attempt], faults: Sequence[Fault]) -> Iterator[str]:
    """Steps and time of each attempt, and why it ended, as the restart after it says."""
    ends = {fault["at_ns"]: fault["what"].partition(": ")[2] for fault in faults if fault["kind"] == FaultKind.RESTART}
    shown = attempts[-MAX_ATTEMPTS:] if len(attempts) > 1 else ()
    if len(attempts) > len(shown) > 0:
        yield f"{count(len(attempts) - len(shown), 'earlier attempt')} (see --format json)"
    for attempt, after in zip_longest(shown, shown[1:]):
        how = ends.get(after.began_ns, "ended well") if after is not None else "the other sections describe it"
        took = duration(max(attempt.last_ns - attempt.began_ns, 0))
        yield f"attempt {attempt.number}: {count(attempt.num_steps, 'step')} in {took}; {how}"


def _costs(source: Source) -> Iterator[str]:
    """What background saves cost, and how the data went on after each restart."""
    saves, order = source.analysis.background_saves, source.analysis.data_order
    if saves is not None:
        yield f"background saves: {_cost_of_saves(saves)}"
    for each in () if order is None else order.continuations:
        yield f"data order: {numbers(each.ranks, 'rank')}: {each.what}"


def _cost_of_saves(saves: BackgroundSaves) -> str:
    extra, touched = saves.extra_ns, f"{count(saves.saves, 'save')} during {count(saves.steps, 'step')}"
    if extra is None:
        return f"{touched}; their cost to these steps is unknown: {saves.reason}"
    low, high = duration(extra.low), duration(extra.high)
    return (
        f"{touched}; each adds {duration(extra.estimate)} to its steps ({low} to {high}), "
        f"an estimated {share(saves.ratio)} of step time"
    )
