"""Experts: the load of a mixture's experts, and the layers with the most uneven load."""

from collections.abc import Iterator, Sequence

from traincope.analysis import ExpertLoads, LayerLoad
from traincope.report.sections.section import Drawing, Lines, On, Part, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import count

NAME, TITLE = "experts", "Experts"
MISSING = "The training logged no expert load."
HEADS = ("layer", "experts", "rows", "hottest", "x mean", "coldest", "x mean")
LAYERS = {On.CONSOLE: 8, On.SCREEN: 256}
"""Layers in a table, the most uneven ones; JSON has all."""
PLACE = ("utilization", "experts")


def experts(source: Source) -> Section:
    loads = source.analysis.experts
    if loads is None:
        return Section(name=NAME, title=TITLE, missing=MISSING)
    return Section(
        name=NAME,
        title=TITLE,
        lead=tuple(_lead(loads)),
        parts=(
            Drawing(figure="load", of=(loads,), caption="Rows of each expert relative to the mean of its layer"),
            *(part for on in LAYERS for part in _table(loads.layers, on=on)),
        ),
    )


def _lead(loads: ExpertLoads) -> Iterator[Words]:
    yield f"{count(round(sum(sum(layer.tokens) for layer in loads.layers)))} rows per step over all layers and ranks"
    if loads.dropped_ratio:
        yield ("; ", number(*PLACE, "dropped_ratio", form="share"), " of choices dropped")
    if loads.padding_ratio:
        yield ("; ", number(*PLACE, "padding_ratio", form="share"), " of the multiplied rows are padding")


def _table(layers: Sequence[LayerLoad], *, on: On) -> Iterator[Part]:
    uneven = sorted(range(len(layers)), key=lambda at: -layers[at].ratio)[: LAYERS[on]]
    shown = sorted(uneven, key=lambda at: layers[at].layer)
    yield Table(caption="Layers", heads=HEADS, rows=rows(_row(at, layers[at]) for at in shown), on=on)
    if len(shown) < len(layers):
        yield Lines((f"the {len(shown)} most uneven of {len(layers)} layers",), on=on)


def _row(at: int, layer: LayerLoad) -> Iterator[Words]:
    tokens = layer.tokens
    total, coldest = sum(tokens), min(range(len(tokens)), key=tokens.__getitem__)
    yield from (str(layer.layer), str(len(tokens)), count(round(total)), str(layer.hottest))
    yield number(*PLACE, "layers", at, "hottest_ratio", form="ratio")
    yield from (str(coldest), f"{tokens[coldest] * len(tokens) / total if total else 1.0:.2f}")
