"""What the experts of a mixture got to do, where the training logs it.

`run.log(**{"expert_tokens[3.7]": 512})`: expert 7 of layer 3 got so many rows from all its peers in
this step; a rank logs the experts it has. `expert_padding` and `expert_dropped`, also by rank: rows
multiplied in vain, and choices for which an expert had no room.
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
    """One layer's experts, over all ranks; means of a step."""

    layer: int
    tokens: tuple[float, ...]
    """Rows of each expert, by its number."""

    @property
    def hottest(self) -> int:
        return int(np.argmax(self.tokens))

    @property
    def ratio(self) -> float:
        """Rows of the hottest expert over the mean; 1 where nothing was routed."""
        total = sum(self.tokens)
        return self.tokens[self.hottest] * len(self.tokens) / total if total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoads:
    """All layers; means of a step."""

    layers: tuple[LayerLoad, ...]
    padding: float
    dropped: float

    @property
    def rows(self) -> float:
        """What experts were given, padding not among it."""
        return sum(sum(layer.tokens) for layer in self.layers)

    @property
    def hottest(self) -> LayerLoad:
        return max(self.layers, key=lambda layer: layer.ratio)

    @property
    def dropped_ratio(self) -> float:
        """Of all choices."""
        return self.dropped / (self.rows + self.dropped) if self.dropped else 0.0

    @property
    def padding_ratio(self) -> float:
        """Of all rows that were multiplied."""
        return self.padding / (self.rows + self.padding) if self.padding else 0.0


def expert_loads(timeline: Timeline) -> ExpertLoads | None:
    """None where nothing of it was logged."""
    by_layer: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    padding = dropped = 0.0
    for rank in timeline.ranks:
        for name, mean in logged_means(rank).items():
            found = TOKENS.fullmatch(name)
            if found:
                by_layer[int(found[1])][int(found[2])] += mean
            padding += mean if name == PADDING else 0.0
            dropped += mean if name == DROPPED else 0.0
    layers = tuple(
        LayerLoad(layer=layer, tokens=tuple(tokens.get(expert, 0.0) for expert in range(max(tokens) + 1)))
        for layer, tokens in sorted(by_layer.items())
    )
    return ExpertLoads(layers=layers, padding=padding, dropped=dropped) if layers else None


def rows_then(timeline: Timeline, *, steps: Collection[int]) -> float | None:
    """Rows multiplied in one of `steps`, taken or padding, in the mean; None unless all of these steps logged it."""
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
        own = values[records["name"] == number]
        finite = own[np.isfinite(own)]
        if len(finite):
            means[rank.name(number)] = float(finite.mean())
    return means
