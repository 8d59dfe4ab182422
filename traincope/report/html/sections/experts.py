"""Experts section: the load of a mixture's experts."""

from traincope.analysis import LayerLoad
from traincope.figures.efficiency.experts import expert_load
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source

TITLE = "Experts"
HEADS = ("layer", "experts", "hottest expert", "times the mean")
MISSING = "The training logged no expert load."


def experts(source: Source) -> Section:
    loads = source.analysis.experts
    if loads is None:
        return Section(name="experts", title=TITLE, missing=MISSING)
    prefix = ("utilization", "experts")
    dropped, padding = (source.number(*prefix, key, form="share") for key in ("dropped_ratio", "padding_ratio"))
    return Section(
        name="experts",
        title=TITLE,
        lead="mean per step",
        body=(
            tag("p", dropped, " of token assignments were dropped; ", padding, " of the multiplied rows were padding."),
            plot(expert_load(loads), name="load", caption="Rows of each expert relative to the mean of its layer"),
            table("Layers", HEADS, [_row(source, at, layer) for at, layer in enumerate(loads.layers)]),
        ),
    )


def _row(source: Source, at: int, layer: LayerLoad) -> list[Html]:
    prefix = ("utilization", "experts", "layers", at)
    return [
        joined(str(layer.layer)),
        joined(str(len(layer.tokens))),
        joined(str(layer.hottest)),
        source.number(*prefix, "hottest_ratio", form="ratio"),
    ]
