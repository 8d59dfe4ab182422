"""Goodput section: parts of the job's time over all attempts."""

from collections.abc import Iterator

from traincope.analysis import Goodput
from traincope.figures.run.goodput import UNKNOWN, goodput_bars
from traincope.palette import colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, swatch, table
from traincope.report.html.source import Source

TITLE = "Goodput"
PARTS = {
    "productive": "productive steps",
    "skipped": "skipped steps",
    "rolled_back": "rolled back steps",
    "lost": "lost steps",
    "startup": "startup",
    "restart": "restarts",
    "checkpoint_stall": "checkpoint stalls",
    "evaluation": "evaluation",
    "other": "outside complete steps",
}


def goodput(source: Source) -> Section:
    job = source.analysis.goodput
    if job is None:
        return Section(name="goodput", title=TITLE, missing=UNKNOWN)
    rows = [_row(source, part, PARTS[part]) for part, ns in job.parts.items() if ns]
    return Section(
        name="goodput",
        title=TITLE,
        body=(
            tag("p", *_summary(source, job)),
            plot(
                goodput_bars(job),
                name="job",
                caption="Time of the whole job by part, and its attempts on the job's clock",
            ),
            table("Parts of the job's time", ("part", "time", "share"), rows),
        ),
    )


def _summary(source: Source, job: Goodput) -> Iterator[str]:
    elapsed = source.number("goodput", "elapsed_ns", form="duration")
    if job.productive_ratio is not None:
        ratio = source.number("goodput", "productive_ratio", form="share")
        yield from (ratio, " of ", elapsed, " was productive.")
    else:
        steps = source.number("goodput", "steps_ns", form="duration")
        yield from (f"Goodput is unknown: {job.reason}. Steps took ", steps, " of ", elapsed, ".")


def _row(source: Source, part: str, words: str) -> list[Html]:
    return [
        joined(swatch(colour(part)), words),
        source.number("goodput", f"{part}_ns", form="duration"),
        source.number("goodput", f"{part}_ns", form="share", per=("goodput", "elapsed_ns")),
    ]
