"""Reliability section: interruptions by cause, the time between them, rolling goodput, checkpoints."""

from collections.abc import Iterator

from traincope.analysis import Reliability
from traincope.figures.run.rolling import rolling_goodput
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.text.sections.reliability import is_logbook

TITLE = "Reliability"
UNKNOWN = "Interruptions are unknown: no attempt reached a step, or imported traces show a part of the job only."


def reliability(source: Source) -> Section:
    job = source.analysis.reliability
    if job is None:
        return Section(name="reliability", title=TITLE, missing=UNKNOWN)
    figure = []
    if job.rolling:
        share, of = ("Share in runs", "in runs") if is_logbook(source.document) else ("Productive share", "productive")
        caption = f"{share} of the time before each instant"
        figure = [plot(rolling_goodput(job.rolling, of=of), name="rolling", caption=caption)]
    return Section(
        name="reliability",
        title=TITLE,
        lead="over all attempts",
        body=(
            tag("p", *_summary(source, job)),
            *figure,
            *([_causes(source, job)] if job.causes else []),
            *([_badput(source, job)] if job.badput else []),
            notes(_notes(source, job)),
        ),
    )


def _summary(source: Source, job: Reliability) -> Iterator[str]:
    number = source.number("reliability", "num_interruptions", form="count")
    noun = " interruption in " if job.num_interruptions == 1 else " interruptions in "
    yield from (number, noun, source.number("reliability", "elapsed_ns", form="duration"), ". ")
    between = job.mtbf
    if between is None:
        yield f"The mean time between them is unknown: {job.mtbf_reason}."
        return
    low = source.number("reliability", "mtbf", "low_ns", form="duration")
    if between.ns is None:
        yield from ("The mean time between them is over ", low, " with 95 % confidence.")
        return
    yield from ("Mean time between them: ", source.number("reliability", "mtbf", "ns", form="duration"))
    yield from (" (95 % interval ", low, " to ", source.number("reliability", "mtbf", "high_ns", form="duration"), ").")


def _causes(source: Source, job: Reliability) -> Html:
    rows = [
        [
            joined(cause.cause.replace("_", " ")),
            source.number("reliability", "causes", at, "count", form="count"),
            source.number("reliability", "causes", at, "ratio", form="share"),
        ]
        for at, cause in enumerate(job.causes)
    ]
    return table("Interruptions by cause", ("cause", "interruptions", "share"), rows)


def _badput(source: Source, job: Reliability) -> Html:
    rows = [
        [
            joined(entry.part.replace("_", " ")),
            joined("" if entry.cause is None else entry.cause.replace("_", " ")),
            source.number("reliability", "badput", at, "ns", form="duration"),
            source.number("reliability", "badput", at, "unknown", form="count"),
        ]
        for at, entry in enumerate(job.badput)
    ]
    heads = ("part", "cause of the interruption", "time", "interruptions of unknown time")
    return table("Badput: time that was not productive", heads, rows, words=(0, 1))


def _notes(source: Source, job: Reliability) -> Iterator[Html]:
    if job.running_ratio is not None:
        yield joined("Attempts ran in ", source.number("reliability", "running_ratio", form="share"), " of the time.")
    for key, what in (("mean_detect_ns", "Noticed after "), ("mean_restart_ns", "Restarted after ")):
        number = source.number("reliability", key, form="duration")
        yield joined(what, number, ", on average over the interruptions where it is known.")
    if job.productive_ratio is None:
        yield joined(f"Goodput is unknown: {job.reason}.")
    if job.saves is not None:
        cost = source.number("reliability", "saves", "cost_ns", form="duration")
        interval = source.number("reliability", "saves", "interval_ns", form="duration")
        yield joined("A checkpoint costs ", cost, "; training between two: ", interval, ".")
    if job.cadence is not None:
        best = source.number("reliability", "cadence", "best_ns", form="duration")
        now = source.number("reliability", "cadence", "lost_ratio", form="share")
        there = source.number("reliability", "cadence", "best_lost_ratio", form="share")
        yield joined("Daly's interval: ", best, ". Expected loss of time: ", now, " as recorded, ", there, " there.")
