"""What became of the job's time, over all its attempts."""

from collections.abc import Iterator

from traincope.figures.goodput import goodput_bars, parts
from traincope.palette import colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, swatch, table
from traincope.report.html.source import Source
from traincope.report.schema import Goodput

TITLE = "Goodput"
PARTS = {
    "productive": "steps that last",
    "lost": "steps that were lost",
    "startup": "startup",
    "restart": "restarts",
    "checkpoint_stall": "checkpoint stalls",
    "evaluation": "evaluation",
    "other": "outside of complete steps",
}


def goodput(source: Source) -> Section:
    job, found = source.document["goodput"], source.analysis.goodput
    if job is None or found is None:
        return Section(name="goodput", title=TITLE, missing="Unknown: no step was begun.")
    rows = [_row(source, part, PARTS[part]) for part, ns in parts(found).items() if ns]
    return Section(
        name="goodput",
        title=TITLE,
        body=(
            tag("p", *_said(source, job)),
            plot(goodput_bars(found), name="job", caption="The whole job's time, and each attempt on its clock"),
            table("What the job's time was", ("part", "time", "share"), rows),
        ),
    )


def _said(source: Source, job: Goodput) -> Iterator[str]:
    elapsed = source.number("goodput", "elapsed_ns", form="duration")
    if job["productive_ratio"] is not None:
        ratio = source.number("goodput", "productive_ratio", form="share")
        yield from (ratio, " of ", elapsed, " was steps that last.")
    else:
        steps = source.number("goodput", "steps_ns", form="duration")
        yield from (f"Unknown: {job['reason']}. Steps took ", steps, " of ", elapsed, ".")


def _row(source: Source, part: str, words: str) -> list[Html]:
    return [
        joined(swatch(colour(part)), words),
        source.number("goodput", f"{part}_ns", form="duration"),
        source.number("goodput", f"{part}_ns", form="share", per=("goodput", "elapsed_ns")),
    ]
