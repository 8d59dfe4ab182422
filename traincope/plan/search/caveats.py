"""Trainings that predictions were compared with, and the limits of a predicted layout that they show."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp

from traincope.plan.layout.layout import Layout
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.clusters import Accelerator

MEDIAN_ERROR_RATIO, P90_ERROR_RATIO = 0.029, 0.111
"""Errors of the step times of groups of trainings that were left out of the fit: `make truth-plan` prints them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Sizes of the trainings of `make truth-plan`. All of them are dense and in 16 bits, on A100 and H100."""

    trainings: int
    gpus: tuple[int, int]
    tp: int
    """Largest; so are `pp` and `cp`."""
    pp: int
    cp: int
    zero: frozenset[int]
    schedules: frozenset[str]


CHECKED = Checked(
    trainings=161,
    gpus=(8, 16_384),
    tp=8,
    pp=64,
    cp=16,
    zero=frozenset({0, 1, 2, 3}),
    schedules=frozenset({"1f1b", "interleaved"}),
)


def checked(*, measured: bool, kernels: bool = False) -> str:
    """Say which trainings the prediction was compared with. `measured`: it uses the rates of a run; `kernels`: those of
    kernels by shape.
    """
    if kernels:
        return "no training whose kernels were measured on its own GPU; no bounds of a single prediction are known"
    if measured:
        return (
            "11 layouts of dense models on 2 and 4 ranks of a CPU: the step is off by 11.2 % at most; no bounds of a "
            "single prediction are known"
        )
    fewest, most = CHECKED.gpus
    return (
        f"{CHECKED.trainings} published trainings of dense models in 16 bits on A100 and H100, with {fewest} to "
        f"{most:,} GPUs, tp up to {CHECKED.tp}, pp up to {CHECKED.pp} (1f1b and interleaved), cp up to {CHECKED.cp}: "
        f"the step is off by {100 * MEDIAN_ERROR_RATIO:.1f} % in the median, and by {100 * P90_ERROR_RATIO:.1f} % at "
        "the 90th percentile, if the trainings of its model size or number of GPUs are left out of the fit"
    )


def caveats(
    layout: Layout, accelerator: Accelerator, *, shape: Transformer | None = None, measured: bool = False
) -> Iterator[str]:
    """Yield the reasons not to rely on the prediction of a layout."""
    if accelerator.family.spread is None:
        yield (
            f"no published training on {accelerator.spec.name} is compared with the prediction; the constants are "
            "fitted on A100 and H100"
        )
    if not measured and (beyond := ", ".join(_beyond(layout, shape))):
        yield f"the fastest layout has {beyond}, and the prediction is compared with no published training that has it"


def interval(
    layout: Layout, accelerator: Accelerator, *, shape: Transformer | None = None, measured: bool = False
) -> tuple[float, float] | None:
    """Factors around a step time between which LEVEL of held-out trainings lie: with software of the tables, and with
    other software. None where no training covers the prediction.
    """
    family = accelerator.family
    if measured or family.spread is None or family.other_spread is None or any(_beyond(layout, shape)):
        return None
    return exp(family.spread), exp(family.other_spread)


def _beyond(layout: Layout, shape: Transformer | None) -> Iterator[str]:
    """Yield the properties of a layout and a model that no checked training has."""
    if shape is not None and shape.experts is not None:
        yield "experts"
    if shape is not None and shape.latent is not None:
        yield "multi-latent attention"
    if shape is not None and shape.windows is not None:
        yield "attention in windows"
    if layout.zero not in CHECKED.zero:
        yield f"ZeRO stage {layout.zero}"
    if layout.node_ranks is not None or layout.quantize_weights or layout.quantize_gradients:
        yield "ZeRO++"
    if layout.updates_on_cpu:
        yield "offloaded state"
    if layout.tp > CHECKED.tp:
        yield f"tp = {layout.tp}"
    if layout.pp > CHECKED.pp:
        yield f"pp = {layout.pp}"
    if layout.pp > 1 and layout.order_name not in CHECKED.schedules:
        yield f"schedule {layout.order_name}"
    if layout.cp > CHECKED.cp:
        yield f"cp = {layout.cp}"
    if layout.ranks > CHECKED.gpus[1]:
        yield f"{layout.ranks:,} GPUs"
