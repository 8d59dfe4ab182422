"""Logged values: curves over the steps."""

from traincope.analysis import logged_samples
from traincope.analysis.efficiency.samples import names_to_draw
from traincope.report.sections.section import Drawing, Section
from traincope.report.sections.source import Source

NAME, TITLE = "logged", "Loss"
MISSING = "No values were logged. Call `run.log(loss=...)` in each step."


def logged(source: Source) -> Section:
    samples = logged_samples(source.analysis.timeline)
    if not samples:
        return Section(name=NAME, title=TITLE, missing=MISSING)
    more = len({sample.name for sample in samples}) - len(names_to_draw(samples))
    caption = f"Logged values, mean over the ranks that logged them{f'; {more} more are not drawn' if more else ''}"
    return Section(name=NAME, title=TITLE, parts=(Drawing(figure="curves", of=(samples,), caption=caption),))
