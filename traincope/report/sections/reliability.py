"""Reliability: interruptions of the job by cause, their cost, the time between them, rolling goodput, checkpoints."""

from collections.abc import Iterator, Sequence

from traincope.analysis.reliability.badput import Badput, CauseCount
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.reliability.rolling import Rolling
from traincope.report.schema import Document
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Drawing, Lines, Number, On, Part, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import MISSING, count, duration, share

NAME, TITLE = "reliability", "Reliability"
UNKNOWN = "Interruptions are unknown: no attempt reached a step, or imported traces show a part of the job only."
HOUR_NS = 3_600_000_000_000
MAX_CAUSES = 20
"""Further causes are counted, not listed; JSON has all."""
COSTS = ("restart", "lost")
"""Parts of the badput that a cause has a column of."""


def is_logbook(document: Document) -> bool:
    """True for a run that was imported from a list of interruptions: other imported runs have no reliability."""
    return document["run"]["imported"] and document["reliability"] is not None


def reliability(source: Source) -> Section:
    job = source.analysis.reliability
    if job is None:
        return Section(name=NAME, title=TITLE, missing=UNKNOWN)
    of = "in runs" if is_logbook(source.document) else "productive"
    return Section(
        name=NAME,
        title=TITLE,
        lead=tuple(_lead(job)),
        parts=(
            *_rolling(job.rolling, of=of),
            Table(
                caption="Interruptions by cause",
                heads=("cause", "count", "share", "restart", "lost steps"),
                rows=rows(_cause(at, cause, job.badput) for at, cause in enumerate(job.causes[:MAX_CAUSES])),
            ),
            Lines(tuple(_lines(job, of=of))),
            Table(
                caption="Badput: time that was not productive",
                heads=("part", "cause of the interruption", "time", "interruptions of unknown time"),
                rows=rows(_badput(at, entry) for at, entry in enumerate(job.badput)),
                left=frozenset({0, 1}),
                on=On.SCREEN,
            ),
        ),
    )


def _number(*path: str | int, form: Form = "duration") -> Number:
    return number("reliability", *path, form=form)


def _lead(job: Reliability) -> Iterator[Words]:
    yield _number("num_interruptions", form="count")
    yield f" {'interruption' if job.num_interruptions == 1 else 'interruptions'} in "
    yield from (_number("elapsed_ns"), "; ")
    between, low = job.mtbf, _number("mtbf", "low_ns")
    if between is None:
        yield f"the mean time between them is unknown: {job.mtbf_reason}"
    elif between.ns is None:
        yield from ("the mean time between them is over ", low, " with 95 % confidence")
    else:
        yield from ("mean time between them ", _number("mtbf", "ns"))
        yield from (" (95 % interval ", low, " to ", _number("mtbf", "high_ns"))
        yield ")" if between.running else ", per elapsed time)"


def _rolling(windows: Sequence[Rolling], *, of: str) -> Iterator[Part]:
    if windows:
        caption = f"Share of the time before each instant that was {of}"
        yield Drawing(figure="rolling", of=(windows, of), caption=caption)


def _cause(at: int, cause: CauseCount, badput: Sequence[Badput]) -> Iterator[Words]:
    yield cause.cause.replace("_", " ")
    yield _number("causes", at, "count", form="count")
    yield _number("causes", at, "ratio", form="share")
    for part in COSTS:
        yield _time(badput, part, cause.cause)


def _badput(at: int, entry: Badput) -> Iterator[Words]:
    yield entry.part.replace("_", " ")
    yield (entry.cause or "").replace("_", " ")
    yield _number("badput", at, "ns")
    yield _number("badput", at, "unknown", form="count")


def _time(badput: Sequence[Badput], part: str, cause: str) -> Words:
    """The time, "unknown", or a lower bound."""
    for at, entry in enumerate(badput):
        if entry.part == part and entry.cause == cause:
            if entry.ns is None:
                return "unknown"
            return ("at least " if entry.unknown else "", _number("badput", at, "ns"))
    return MISSING


def _lines(job: Reliability, *, of: str) -> Iterator[Words]:
    if len(job.causes) > MAX_CAUSES:
        yield f"{count(len(job.causes) - MAX_CAUSES, 'more cause')} (see --format json)"
    if job.running_ratio is not None:
        yield ("attempts ran in ", _number("running_ratio", form="share"), " of the time")
    if job.productive_ratio is None:
        yield f"goodput unknown: {job.reason}"
    elif job.productive_low_ratio is None:
        yield ("goodput ", _number("productive_ratio", form="share"))
    else:
        low, high = share(job.productive_low_ratio), share(job.productive_high_ratio)
        within = f" ({low} to {high}) by the steps and times of the list"
        yield ("goodput ", _number("productive_ratio", form="share"), within)
    times = (("noticed after", job.mean_detect_ns), ("restarted after", job.mean_restart_ns))
    known = [f"{what} {duration(ns)}" for what, ns in times if ns is not None]
    if known:
        yield f"on average, as far as known: {', '.join(known)}"
    for window in job.rolling:
        lowest, last = share(min(window.ratios)), share(window.ratios[-1])
        yield f"rolling {window.window_ns // HOUR_NS} h: {last} {of} at the end, lowest {lowest}"
    yield from _checkpoints(job)


def _checkpoints(job: Reliability) -> Iterator[Words]:
    saves, best = job.saves, job.cadence
    if saves is None:
        return
    each = () if saves.interval_ns is None else (", one after each ", _number("saves", "interval_ns"))
    yield (f"checkpoints: {count(saves.count)}, each costs ", _number("saves", "cost_ns"), *each)
    if best is not None:
        yield (
            *("Daly's interval: ", _number("cadence", "best_ns")),
            f" ({duration(best.best_low_ns)} to {duration(best.best_high_ns)}); expected loss ",
            *(_number("cadence", "lost_ratio", form="share"), " of the time as recorded, "),
            *(_number("cadence", "best_lost_ratio", form="share"), " there"),
        )
