"""Shapes for a number of parameters alone: a dense model in the proportions that published ones have.

From 3 billion parameters on, the blocks are Llama 3's: a gated feed-forward, 8 key and value heads, heads of 128. Below
that, they are GPT-2's (Radford et al. 2019): a plain feed-forward, one embedding. The residual stream is about 120
times as wide as there are blocks (102 to 130 in Llama 3). The width of the feed-forward makes up the number.
"""

import re

from traincope.errors import UsageError
from traincope.plan.model.transformer import Transformer

SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([MBT]?)", re.IGNORECASE)
UNITS = {"": 1.0, "M": 1e6, "B": 1e9, "T": 1e12}
SMALLEST, LARGEST = 10_000_000, 10**14
GATED_FROM = 3_000_000_000
HIDDEN_PER_LAYER = 120
HEAD_DIM = 128
KV_HEADS = 8
MULTIPLE = 16
"""The width of the feed-forward is a multiple of this."""
SEQUENCE = {True: 8_192, False: 1_024}


def parameters_of(text: str) -> int | None:
    """The number in `70e9`, `70B` or `1.3B`; None for any other text."""
    found = SIZE.fullmatch(text.strip())
    return None if found is None else round(float(found[1]) * UNITS[found[2].upper()])


def shape_of_size(parameters: int, *, sequence: int | None = None) -> Transformer:
    """The assumed shape. Its number of parameters differs by less than 1 %. Raises UsageError for an unusual number."""
    if not SMALLEST <= parameters <= LARGEST:
        raise UsageError(
            f"{parameters:,} parameters are not between {SMALLEST:,} and {LARGEST:,}; give the shapes of the model"
        )
    gated = parameters >= GATED_FROM
    usual = 3.5 if gated else 4.0
    few = 1 if parameters < GATED_FROM else KV_HEADS
    shapes = [
        shape
        for heads in range(few, 1024, few)
        if (shape := _shape(parameters, heads=heads, gated=gated, sequence=sequence)) is not None
    ]
    return min(shapes, key=lambda shape: abs((shape.ffn or 0) / shape.hidden - usual))


def _shape(parameters: int, *, heads: int, gated: bool, sequence: int | None) -> Transformer | None:
    """The shape with so many heads; None if nothing is left for the feed-forward."""
    hidden = heads * (HEAD_DIM if gated else HEAD_DIM // 2)
    bare = Transformer(
        layers=max(round(hidden / HIDDEN_PER_LAYER), 2),
        hidden=hidden,
        heads=heads,
        kv_heads=KV_HEADS if gated else None,
        ffn=MULTIPLE,
        vocabulary=128_256 if gated else 50_304,
        sequence=sequence or SEQUENCE[gated],
        gated_mlp=gated,
        untied=gated,
    )
    per_multiple = bare.layers * (3 if gated else 2) * hidden * MULTIPLE
    width = MULTIPLE * (1 + round((parameters - bare.parameters) / per_multiple))
    if width < hidden:
        return None
    return Transformer(
        layers=bare.layers,
        hidden=hidden,
        heads=heads,
        kv_heads=bare.kv_heads,
        ffn=width,
        vocabulary=bare.vocabulary,
        sequence=bare.sequence,
        gated_mlp=gated,
        untied=gated,
    )
