"""Load of a mixture's experts, from what the training logs.

`run.log(**{"expert_tokens[3.7]": 512})`: expert 7 of layer 3 got 512 rows from all its peers in this step. A rank logs
the experts that it has. `expert_padding` and `expert_dropped`, also per rank: padding rows that were multiplied, and
choices for which an expert had no room.
"""

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from traincope.events import Kind
from traincope.timeline import RankTimeline, Timeline

TOKENS = re.compile(r"expert_tokens\[(\d+)\.(\d+)\]")
PADDING, DROPPED = "expert_padding", "expert_dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLoad:
    """Load of one layer's experts over all ranks; means per step."""

    layer: int
    tokens: tuple[float, ...]
    """Rows of each expert, by its number, without padding."""

    @property
    def hottest(self) -> int:
        return int(np.argmax(self.tokens))

    @property
    def ratio(self) -> float:
        """Rows of the hottest expert over the mean; 1 if nothing was routed."""
        total = sum(self.tokens)
        return self.tokens[self.hottest] * len(self.tokens) / total if total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoads:
    """Loads of all layers; means per step."""

    layers: tuple[LayerLoad, ...]
    padding: float
    dropped: float

    @property
    def rows(self) -> float:
        """Rows that the experts got, without padding."""
        return sum(sum(layer.tokens) for layer in self.layers)

    @property
    def hottest(self) -> LayerLoad:
        return max(self.layers, key=lambda layer: layer.ratio)

    @property
    def dropped_ratio(self) -> float:
        """Share of the tokens' choices for which an expert had no capacity."""
        return self.dropped / (self.rows + self.dropped) if self.dropped else 0.0

    @property
    def padding_ratio(self) -> float:
        """Share of padding in the rows that experts multiplied."""
        return self.padding / (self.rows + self.padding) if self.padding else 0.0


def expert_loads(timeline: Timeline) -> ExpertLoads | None:
    """Loads by layer; None if the training logged none."""
    by_layer: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    padding = dropped = 0.0
    for rank in timeline.ranks:
        for name, mean in logged_means(rank).items():
            match = TOKENS.fullmatch(name)
            if match:
                by_layer[int(match[1])][int(match[2])] += mean
            padding += mean if name == PADDING else 0.0
            dropped += mean if name == DROPPED else 0.0
    layers = tuple(
        LayerLoad(layer=layer, tokens=tuple(tokens.get(expert, 0.0) for expert in range(max(tokens) + 1)))
        for layer, tokens in sorted(by_layer.items())
    )
    return ExpertLoads(layers=layers, padding=padding, dropped=dropped) if layers else None


def mean_rows_multiplied(timeline: Timeline, *, steps: Collection[int]) -> float | None:
    """Mean rows multiplied per step of `steps`, padding included; None unless each of these steps logged them."""
    sums: dict[int, float] = defaultdict(float)
    for rank in timeline.ranks:
        records = rank.of_kind(Kind.SCALAR)
        names = [number for number in np.unique(records["name"]).tolist() if _is_rows(rank.name(number))]
        chosen = records[np.isin(records["name"], names) & np.isin(records["step"], list(steps))]
        values = np.ascontiguousarray(chosen["value"]).view(np.float64)
        for step, value in zip(chosen["step"].tolist(), values.tolist(), strict=True):
            sums[step] += value
    return sum(sums.values()) / len(sums) if sums and len(sums) == len(set(steps)) else None


def _is_rows(name: str) -> bool:
    return name == PADDING or TOKENS.fullmatch(name) is not None


def logged_means(rank: RankTimeline) -> dict[str, float]:
    """Name given to `run.log()` -> mean of its finite values."""
    records = rank.of_kind(Kind.SCALAR)
    values = np.ascontiguousarray(records["value"]).view(np.float64)
    means = {}
    for number in np.unique(records["name"]).tolist():
        logged = values[records["name"] == number]
        finite = logged[np.isfinite(logged)]
        if len(finite):
            means[rank.name(number)] = float(finite.mean())
    return means
