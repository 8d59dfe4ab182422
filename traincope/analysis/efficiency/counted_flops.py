"""FLOPs that a rank counted, by phase, kind of work and dtype."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.efficiency.declared_flops import StepScale
from traincope.events import Kind, Phase, Work
from traincope.timeline import RankTimeline

MODEL_PHASES = (Phase.FORWARD, Phase.BACKWARD)
SKIPPING = (Work.CAUSAL_ATTENTION, Work.CAUSAL_ATTENTION_AGAIN)
"""Causal attention whose kernels skip the masked half."""
CAUSAL = (*SKIPPING, Work.CAUSAL_PRODUCTS, Work.MASKED_ATTENTION)
AGAIN = (Work.ATTENTION_AGAIN, Work.CAUSAL_ATTENTION_AGAIN, Work.HIDDEN_ATTENTION)
"""Executed, but not the model's."""
ATTENTION = frozenset({Work.ATTENTION, *CAUSAL, *AGAIN})
PARAMETERS = (Work.IMPLIED, Work.COVERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFlops:
    """Mean FLOPs of one rank's counted steps."""

    rank: int
    num_steps: int
    flops: dict[tuple[Phase, Work, str], float]
    """Phase, kind of work, dtype -> FLOPs; attention counts in full."""

    def model(self, *, causal_half: bool) -> dict[str, float]:
        """dtype -> FLOPs of forward and backward, without what is computed twice."""
        halved = CAUSAL if causal_half else ()
        return self._by_dtype(lambda phase, work: phase in MODEL_PHASES and work not in AGAIN, halved=halved)

    def executed(self) -> dict[str, float]:
        """dtype -> FLOPs of all that ran."""
        return self._by_dtype(lambda _phase, _work: True, halved=SKIPPING)

    def recomputed(self) -> dict[str, float]:
        """dtype -> FLOPs of forward work that backward repeated."""
        return self._by_dtype(lambda phase, _work: phase is Phase.RECOMPUTE, halved=SKIPPING)

    def needed_by_phase(self) -> dict[Phase, float]:
        """FLOPs of each phase without what a kernel computes again, attention in full."""
        sums: dict[Phase, float] = {}
        for (phase, work, _), count in self.flops.items():
            if work not in PARAMETERS and work not in AGAIN:
                sums[phase] = sums.get(phase, 0.0) + count
        return sums

    def scaled(self, step_scale: StepScale) -> "CountedFlops":
        """Scale to larger steps: weights by their tokens, attention by squared lengths."""
        flops = {
            (phase, work, dtype): count * (step_scale.squared_lengths if work in ATTENTION else step_scale.tokens)
            for (phase, work, dtype), count in self.flops.items()
        }
        return replace(self, flops=flops)

    @property
    def coverage_ratio(self) -> float | None:
        """Share of the parameters' forward FLOPs whose modules ran counted products; None without such FLOPs."""
        implied, covered = (
            sum(count for (_, work, _), count in self.flops.items() if work is kind) for kind in PARAMETERS
        )
        return covered / implied if implied else None

    @property
    def module_ratio(self) -> float:
        """Share of the model's FLOPs, attention in full, that only the weights and inputs of modules gave."""
        model = sum(self.model(causal_half=False).values())
        by_module = sum(count for (_, work, _), count in self.flops.items() if work is Work.BY_MODULE)
        return by_module / model if model else 0.0

    def _by_dtype(self, chosen: Callable[[Phase, Work], bool], *, halved: Collection[Work]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for (phase, work, dtype), count in self.flops.items():
            if work not in PARAMETERS and chosen(phase, work):
                share = 0.5 if work in halved else 1.0
                sums[dtype] = sums.get(dtype, 0.0) + share * count
        return sums


def counted_flops(rank: RankTimeline) -> CountedFlops | None:
    """Mean over the rank's counted steps; None if it counted no step."""
    records = rank.of_kind(Kind.FLOPS)
    num_steps = len(np.unique(records["step"]))
    if not num_steps:
        return None
    flops: dict[tuple[Phase, Work, str], float] = {}
    for record in records:
        key = Phase(int(record["phase"])), Work(int(record["tag"])), rank.name(int(record["name"]))
        flops[key] = flops.get(key, 0.0) + int(record["value"]) / num_steps
    return CountedFlops(rank=rank.rank, num_steps=num_steps, flops=flops)
