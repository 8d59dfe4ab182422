"""EXPERTS: the load of a mixture's experts in the layers with the most uneven load."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import ExpertLoads, LayerLoad
from traincope.lines import table
from traincope.units import count, share

LAYERS = 8
"""Maximum number of layers shown; JSON has all."""


def experts(loads: ExpertLoads) -> Iterator[RenderableType]:
    """One row per layer; means per step."""
    layers = loads.layers
    facts = [f"{count(round(sum(sum(layer.tokens) for layer in layers)))} rows per step over all layers and ranks"]
    if loads.dropped_ratio:
        facts.append(f"{share(loads.dropped_ratio)} of choices dropped")
    if loads.padding_ratio:
        facts.append(f"{share(loads.padding_ratio)} of the multiplied rows are padding")
    yield Text("EXPERTS", style="bold").append("  " + "; ".join(facts), style="not bold")
    rows = table("layer", "experts", "rows", "hottest", "x mean", "coldest", "x mean")
    shown = sorted(layers, key=lambda layer: -layer.ratio)[:LAYERS]
    for layer in sorted(shown, key=lambda layer: layer.layer):
        rows.add_row(f"    {layer.layer}", *_cells(layer))
    yield rows
    if len(layers) > LAYERS:
        yield Text(f"    the {LAYERS} most uneven of {len(layers)} layers", style="dim")


def _cells(layer: LayerLoad) -> Iterator[str]:
    tokens = layer.tokens
    total, coldest = sum(tokens), min(range(len(tokens)), key=tokens.__getitem__)
    yield str(len(tokens))
    yield count(round(total))
    yield str(layer.hottest)
    yield f"{layer.ratio:.2f}"
    yield str(coldest)
    yield f"{tokens[coldest] * len(tokens) / total if total else 1.0:.2f}"
