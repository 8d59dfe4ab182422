"""Logged values: curves over the steps."""

from traincope.analysis import logged_samples
from traincope.report.sections.section import Drawing, Section
from traincope.report.sections.source import Source

NAME, TITLE = "logged", "Loss"
MISSING = "No values were logged. Call `run.log(loss=...)` in each step."


def logged(source: Source) -> Section:
    samples = logged_samples(source.analysis.timeline)
    if not samples:
        return Section(name=NAME, title=TITLE, missing=MISSING)
    return Section(
        name=NAME,
        title=TITLE,
        lead="mean over the ranks that logged them",
        parts=(Drawing(figure="curves", of=(samples,), caption="Logged values; of more than four, losses come first"),),
    )
