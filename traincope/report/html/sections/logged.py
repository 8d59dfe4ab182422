"""Loss section: curves of the values that the training logged."""

from traincope.analysis import logged_samples
from traincope.figures.steps.loss_curves import logged_curves, names_to_draw
from traincope.report.html.plots import plot
from traincope.report.html.section import Section
from traincope.report.html.source import Source

TITLE = "Loss"
MISSING = "No values were logged. Call `run.log(loss=...)` in each step."


def logged(source: Source) -> Section:
    samples = logged_samples(source.analysis.timeline)
    if not samples:
        return Section(name="logged", title=TITLE, missing=MISSING)
    drawn, names = names_to_draw(samples), {sample.name for sample in samples}
    more = f"; {len(names) - len(drawn)} more are not drawn" if len(names) > len(drawn) else ""
    caption = f"Logged values, mean over the ranks that logged them{more}"
    return Section(name="logged", title=TITLE, body=(plot(logged_curves(samples), name="curves", caption=caption),))
