"""Sets of published layouts of one model on one cluster, ranked by prediction and by measurement."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evaluation.truth.formulas.fitting import Predictor
from evaluation.truth.formulas.models import gpt
from evaluation.truth.formulas.trainings import SELECTIVE, SELENE, Training, trainings
from evaluation.truth.formulas.unfitted import bloom_search
from traincope.plan.layout.families import AMPERE, Family
from traincope.plan.layout.layout import Layout
from traincope.plan.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A set with the layout that is predicted to be fastest."""

    name: str
    chosen: str
    best: str
    """Layout that is measured to be fastest."""
    loss: float
    """Measured time of the chosen one over that of the best, minus 1."""


def rankings(families: Mapping[str, Family]) -> Iterator[Ranking]:
    """Ranking of every set, by GPU time per token."""
    sets: dict[str, list[Training]] = defaultdict(list)
    for training in (*trainings(), *zero_bubble(), *bloom_search()):
        if training.set is not None:
            sets[training.set].append(training)
    for name, members in sets.items():
        if len(members) == 1:
            continue
        predicted = {
            each.name: Predictor(each).prediction(families[each.family.name]).expected_seconds * _per_token(each)
            for each in members
        }
        measured = {each.name: each.seconds * _per_token(each) for each in members}
        chosen, best = min(predicted, key=predicted.__getitem__), min(measured, key=measured.__getitem__)
        yield Ranking(name=name, chosen=chosen, best=best, loss=measured[chosen] / measured[best] - 1)


def _per_token(training: Training) -> float:
    layout = training.layouts[0]
    return layout.ranks / (layout.batch * training.shape.sequence)


def zero_bubble() -> Iterator[Training]:
    """Qi et al. 2023, arXiv:2401.10241, table 4: samples per GPU and second of three schedules on A100.

    The paper has no vocabulary, so these rows are ranked and not scored.
    """
    for model, layers, heads, hidden, pp, micro, microbatches, zb, one, interleaved in (
        ("1.5B", 22, 24, 2304, 8, 6, 24, 12.9, 11.8, 13.1),
        ("1.5B", 22, 24, 2304, 8, 6, 32, 13.4, 12.5, 13.4),
        ("1.5B", 22, 24, 2304, 8, 6, 64, 14.2, 13.6, 13.9),
        ("6.2B", 30, 32, 4096, 8, 3, 24, 3.88, 3.5, 4.01),
        ("6.2B", 30, 32, 4096, 8, 3, 32, 4.0, 3.7, 4.08),
        ("6.2B", 30, 32, 4096, 8, 3, 64, 4.2, 4.03, 4.19),
        ("14.6B", 46, 40, 5120, 16, 1, 48, 1.61, 1.4, 1.54),
        ("14.6B", 46, 40, 5120, 16, 1, 64, 1.67, 1.49, 1.59),
        ("14.6B", 46, 40, 5120, 16, 1, 128, 1.76, 1.64, 1.66),
        ("28.3B", 62, 48, 6144, 32, 1, 96, 0.87, 0.76, 0.82),
        ("28.3B", 62, 48, 6144, 32, 1, 128, 0.9, 0.8, 0.85),
        ("28.3B", 62, 48, 6144, 32, 1, 256, 0.96, 0.88, 0.9),
    ):
        shape: Transformer = gpt(layers, hidden, heads, sequence=1024)
        # The first and the last stage have a block less, so blocks and two ends divide over the stages.
        chunks = (layers + 2) // pp
        for schedule, virtual, rate in (("zb-1p", 1, zb), ("1f1b", 1, one), ("interleaved", chunks, interleaved)):
            yield Training(
                source="Zero Bubble 2023",
                name=schedule,
                model=model,
                seconds=micro * microbatches / (rate * pp),
                shape=shape,
                layouts=(
                    Layout(
                        pp=pp,
                        schedule=schedule,
                        virtual=virtual,
                        micro_batch=micro,
                        microbatches=microbatches,
                    ),
                ),
                policy=SELECTIVE,
                machine=SELENE,
                family=AMPERE,
                set=f"Zero Bubble, {model}, {microbatches} microbatches",
            )
