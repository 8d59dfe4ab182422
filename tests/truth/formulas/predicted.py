"""python -m tests.truth.formulas.predicted: MFU that papers print, and MFU that `traincope.plan` predicts.

Every published training in reach is a row. Three constants are free: the share of peak that matrix products reach, the
accesses of other operations to each byte of activations, and the share of the links' rates. Each row is predicted with
constants fitted on all other rows, so that no row is scored with constants that have seen it. `papers` goes further:
constants fitted on the other papers alone.

Attention counts whole where scores are kept in memory, as in the papers of 2021 and 2022, and half with flash
attention, which skips what a causal mask hides. A setting that a paper leaves open is the fastest of the prediction.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tests.truth.formulas.models import LLAMA3_405B, gpt
from tests.truth.formulas.published import A100, H100
from traincope.errors import UsageError
from traincope.plan.hardware import find_hardware
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.memory import RankMemory, memory
from traincope.plan.layout.prediction import exact_bubble, predict
from traincope.plan.model.flops import Recompute, step_flops, utilization_ratio
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.clusters import FITTED, NETWORK_LATENCY_SECONDS, NODE_LATENCY_SECONDS, Constants

ALLOWED_MEDIAN = 0.10
GIB = 1 << 30
FULL = ActivationPolicy(recompute=Recompute.FULL)
SELECTIVE = ActivationPolicy(recompute=Recompute.SELECTIVE)
FLASH = ActivationPolicy(flash=True, dropout=False)


def machine(device: str, peak: float, *, node: float, network: float, gib: int = 80) -> Machine:
    spec = find_hardware(device)
    assert spec is not None
    return Machine(
        peak_flops=peak,
        memory_bytes=gib * GIB,
        node_bytes_per_second=node,
        network_bytes_per_second=network,
        memory_bytes_per_second=spec.bytes_per_second,
        node_latency_seconds=NODE_LATENCY_SECONDS,
        network_latency_seconds=NETWORK_LATENCY_SECONDS,
    )


SELENE = machine("NVIDIA A100-SXM4-80GB", A100, node=300e9, network=25e9)
"""DGX A100: eight links of 200 Gbit/s per node (Narayanan et al. 2021, section 5)."""
JEAN_ZAY = machine("NVIDIA A100-SXM4-80GB", A100, node=300e9, network=4 * 12.5e9 / 8)
"""Four Omni-Path links of 100 Gbit/s per node of eight (BLOOM's README, train/tr11-176B-ml)."""
GRAND_TETON = machine("NVIDIA H100 80GB HBM3", H100, node=450e9, network=50e9)
"""400 Gbit/s per GPU (Llama Team 2024, section 3.3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A published training with its MFU."""

    paper: str
    name: str
    mfu: float
    """Published MFU, or the published rate or time as MFU."""
    shape: Transformer
    layouts: tuple[Layout, ...]
    """Possible layouts: several if the paper leaves a setting open."""
    policy: ActivationPolicy
    machine: Machine

    @property
    def causal_half(self) -> bool:
        return self.policy.flash


def trainings() -> Iterator[Training]:
    """All rows of the published tables."""
    yield from megatron()
    yield from korthikanti()
    yield from bloom()
    yield from llama()


def megatron() -> Iterator[Training]:
    """Narayanan et al. 2021, arXiv:2104.04473, table 1. Its rates count recomputation; MFU is the model's part."""
    for billions, heads, hidden, layers, tp, pp, dp, batch, micro, virtual, tflops in (
        (1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
        (3.6, 32, 3072, 30, 2, 1, 32, 512, 16, 1, 138),
        (7.5, 32, 4096, 36, 4, 1, 32, 512, 16, 1, 142),
        (18.4, 48, 6144, 40, 8, 1, 32, 1024, 8, 1, 135),
        (39.1, 64, 8192, 48, 8, 2, 32, 1536, 4, 1, 138),
        (76.1, 80, 10240, 60, 8, 4, 32, 1792, 2, 3, 140),
        (145.6, 96, 12288, 80, 8, 8, 24, 2304, 2, 2, 148),
        (310.1, 128, 16384, 96, 8, 16, 15, 2160, 1, 2, 155),
        (529.6, 128, 20480, 105, 8, 35, 9, 2520, 1, 3, 163),
        (1008.0, 160, 25600, 128, 8, 64, 6, 3072, 1, 1, 163),
    ):
        shape = gpt(layers, hidden, heads)
        step = step_flops(shape, batch=1, recompute=Recompute.FULL)
        yield Training(
            paper="Megatron 2021",
            name=f"{billions:g}B, full",
            mfu=tflops * 1e12 / A100 * step.model / step.hardware,
            shape=shape,
            layouts=(
                Layout(
                    dp=dp,
                    tp=tp,
                    pp=pp,
                    virtual=virtual,
                    micro_batch=micro,
                    microbatches=batch // dp // micro,
                    sequence_parallel=False,
                ),
            ),
            policy=FULL,
            machine=SELENE,
        )


def korthikanti() -> Iterator[Training]:
    """Korthikanti et al. 2022, arXiv:2205.05198, table 5: full recomputation, and selective with sequence parallelism.

    MFU is printed for the second; for the first it follows from the printed time.
    """
    for name, heads, hidden, layers, pp, virtual, gpus, batch, micro, full_seconds, mfu in (
        ("22B", 64, 6144, 48, 1, 1, 8, 4, 4, 1.42, 41.5),
        ("175B", 96, 12288, 96, 8, 3, 64, 64, 1, 18.13, 51.4),
        ("530B", 128, 20480, 105, 35, 3, 280, 280, 1, 49.05, 56.0),
        ("1T", 160, 25600, 128, 64, 1, 512, 512, 1, 94.42, 56.3),
    ):
        shape = gpt(layers, hidden, heads)
        model = step_flops(shape, batch=batch).model
        of_time = utilization_ratio(model, devices=gpus, peak_flops=A100, seconds=full_seconds)
        for policy, parallel, value in ((FULL, False, of_time), (SELECTIVE, True, mfu / 100)):
            yield Training(
                paper="Korthikanti 2022",
                name=f"{name}, {policy.recompute}",
                mfu=value,
                shape=shape,
                layouts=(
                    Layout(
                        tp=8,
                        pp=pp,
                        virtual=virtual,
                        micro_batch=micro,
                        microbatches=batch // micro,
                        sequence_parallel=parallel,
                    ),
                ),
                policy=policy,
                machine=SELENE,
            )


def bloom() -> Iterator[Training]:
    """BLOOM-176B, bigscience-workshop/bigscience, train/tr11-176B-ml: README.md and tr11-176B-ml.slurm; 105.2 s."""
    shape = Transformer(layers=70, hidden=14336, heads=112, vocabulary=250_880, sequence=2048)
    model = step_flops(shape, batch=2048).model
    yield Training(
        paper="BLOOM 2022",
        name="176B, full",
        mfu=utilization_ratio(model, devices=384, peak_flops=A100, seconds=105.2),
        shape=shape,
        layouts=(Layout(dp=8, tp=4, pp=12, zero=1, micro_batch=2, microbatches=128, sequence_parallel=False),),
        policy=FULL,
        machine=JEAN_ZAY,
    )


def llama() -> Iterator[Training]:
    """Llama Team 2024, arXiv:2407.21783, table 4. The paper leaves open the stages per rank of its pipeline."""
    for gpus, cp, dp, sequence, microbatches, percent in (
        (8192, 1, 64, 8192, 32, 43),
        (16384, 1, 128, 8192, 16, 41),
        (16384, 16, 8, 131_072, 16, 38),
    ):
        yield Training(
            paper="Llama 3 2024",
            name=f"405B, {gpus} GPUs, cp {cp}",
            mfu=percent / 100,
            shape=replace(LLAMA3_405B, sequence=sequence),
            layouts=tuple(
                Layout(dp=dp, tp=8, pp=16, cp=cp, zero=1, virtual=virtual, microbatches=microbatches)
                for virtual in (1, 2, 4, 8)
            ),
            policy=FLASH,
            machine=GRAND_TETON,
        )


# -- fit and prediction ---------------------------------------------------------------------------


class Predictor:
    """Predicts a training for any constants. What does not depend on them is computed once."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._parts: list[tuple[Layout, tuple[RankMemory, ...], float]] = []
        for layout in training.layouts:
            try:
                held = memory(training.shape, layout=layout, precision=Precision(), policy=training.policy)
            except UsageError:
                continue
            self._parts.append((layout, held, exact_bubble(training.shape, layout=layout)))

    def mfu(self, constants: Constants) -> float:
        """MFU of the fastest possible layout."""
        training = self.training
        machine = constants.applied(training.machine)
        return max(
            predict(
                training.shape,
                layout=layout,
                precision=Precision(),
                policy=training.policy,
                machine=machine,
                causal_half=training.causal_half,
                held=held,
                bubble=bubble,
            ).expected_mfu
            for layout, held, bubble in self._parts
        )


def fit(predictors: Sequence[Predictor], *, start: Constants = FITTED, rounds: int = 4) -> Constants:
    """Constants with the least squares of log(predicted / published), by Gauss and Newton in the constants' logs."""
    point = np.log(np.array([start.efficiency, start.accesses, start.link_share]))
    for _ in range(rounds):
        errors = _errors(predictors, point)
        slopes = np.stack([(_errors(predictors, point + step) - errors) / 1e-4 for step in np.eye(3) * 1e-4], axis=1)
        point = np.minimum(point - np.linalg.lstsq(slopes, errors, rcond=None)[0], [0.0, np.inf, 0.0])
    return _constants(point)


def _constants(point: NDArray[np.float64]) -> Constants:
    efficiency, accesses, link_share = (float(value) for value in np.exp(point))
    return Constants(efficiency=min(efficiency, 1.0), accesses=accesses, link_share=min(link_share, 1.0))


def _errors(predictors: Sequence[Predictor], point: NDArray[np.float64]) -> NDArray[np.float64]:
    constants = _constants(point)
    return np.array([np.log(each.mfu(constants) / each.training.mfu) for each in predictors])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    paper: str
    name: str
    published: float
    """MFU."""
    predicted: float
    """With constants fitted on all other rows."""
    by_other_papers: float
    """With constants fitted on the rows of other papers."""
    constants: Constants
    """Those of `predicted`."""

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1

    @property
    def error_by_other_papers(self) -> float:
        return self.by_other_papers / self.published - 1


def rows() -> Iterator[Row]:
    predictors = [Predictor(training) for training in trainings()]
    of_papers: dict[str, Constants] = {}
    for each in predictors:
        training = each.training
        if training.paper not in of_papers:
            of_papers[training.paper] = fit([other for other in predictors if other.training.paper != training.paper])
        constants = fit([other for other in predictors if other is not each])
        yield Row(
            paper=training.paper,
            name=training.name,
            published=training.mfu,
            predicted=each.mfu(constants),
            by_other_papers=each.mfu(of_papers[training.paper]),
            constants=constants,
        )


def median_error(errors: Iterable[float]) -> float:
    return median(abs(error) for error in errors)


def main() -> int:
    table = Table(title="MFU: published | predicted by the other rows | error | by the other papers | error", box=None)
    for head in ("paper", "training", "published", "predicted", "error", "by papers", "error"):
        table.add_column(head, justify="left" if head in ("paper", "training") else "right", no_wrap=True)
    predicted = list(rows())
    for row in predicted:
        numbers = f"{row.published:.1%}", f"{row.predicted:.1%}", f"{row.error:+.1%}"
        others = f"{row.by_other_papers:.1%}", f"{row.error_by_other_papers:+.1%}"
        table.add_row(row.paper, row.name, *numbers, *others)
    Console(width=120).print(table)
    for name in ("efficiency", "accesses", "link_share"):
        values = [getattr(row.constants, name) for row in predicted]
        print(f"{name}: {getattr(FITTED, name):.3f} on all rows, {min(values):.3f} to {max(values):.3f} on all but one")
    rows_median = median_error(row.error for row in predicted)
    papers_median = median_error(row.error_by_other_papers for row in predicted)
    most = max(abs(row.error) for row in predicted)
    print(
        f"{len(predicted)} trainings; MFU off by {rows_median:.1%} in the median, {most:.1%} at most; "
        f"{papers_median:.1%} in the median by other papers; {ALLOWED_MEDIAN:.0%} allowed in the median"
    )
    return int(rows_median > ALLOWED_MEDIAN)


if __name__ == "__main__":
    sys.exit(main())
