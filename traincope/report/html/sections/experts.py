"""What the experts of a mixture got to do."""

from traincope.figures.experts import expert_load
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.schema import ExpertLayer

TITLE = "Experts"
HEADS = ("layer", "experts", "hottest", "x mean")
MISSING = "The training logged nothing of experts."


def experts(source: Source) -> Section:
    loads, found = source.document["utilization"]["experts"], source.analysis.experts
    if loads is None or found is None:
        return Section(name="experts", title=TITLE, missing=MISSING)
    own = ("utilization", "experts")
    dropped, padding = (source.number(*own, key, form="share") for key in ("dropped_ratio", "padding_ratio"))
    return Section(
        name="experts",
        title=TITLE,
        lead="means of a step",
        body=(
            tag("p", dropped, " of choices dropped, ", padding, " of what was multiplied is padding."),
            plot(expert_load(found), name="load", caption="Rows of each expert over the mean of its layer"),
            table("Layers", HEADS, [_row(source, at, layer) for at, layer in enumerate(loads["layers"])]),
        ),
    )


def _row(source: Source, at: int, layer: ExpertLayer) -> list[Html]:
    own = ("utilization", "experts", "layers", at)
    return [
        joined(str(layer["layer"])),
        joined(str(len(layer["tokens"]))),
        joined(str(layer["hottest"])),
        source.number(*own, "hottest_ratio", form="ratio"),
    ]
