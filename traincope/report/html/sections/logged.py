"""What the training logged: the loss, and what else it told of itself."""

from traincope.analysis import logged_samples
from traincope.figures.losses import logged_curves, names_to_draw
from traincope.report.html.plots import plot
from traincope.report.html.section import Section
from traincope.report.html.source import Source

TITLE = "Loss"
MISSING = "The training logged no value: call `run.log(loss=...)` once a step."


def logged(source: Source) -> Section:
    samples = logged_samples(source.analysis.timeline)
    if not samples:
        return Section(name="logged", title=TITLE, missing=MISSING)
    drawn, names = names_to_draw(samples), {one.name for one in samples}
    more = f"; {len(names) - len(drawn)} more are not drawn" if len(names) > len(drawn) else ""
    caption = f"What was logged, mean over the ranks that logged it{more}"
    return Section(name="logged", title=TITLE, body=(plot(logged_curves(samples), name="curves", caption=caption),))
