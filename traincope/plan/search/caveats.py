"""Trainings that predictions were compared with, and the limits of a predicted layout that they show."""

from collections.abc import Iterator
from dataclasses import dataclass

from traincope.plan.layout.layout import Layout
from traincope.plan.search.clusters import Accelerator

FITTED_ON = ("A100 80GB SXM", "H100 SXM")
"""Accelerators of the published trainings: `tests/truth/formulas/predicted.py`."""
CP_ERROR_RATIO = 0.335
"""Error of the predicted MFU of the only published training with cp: `make truth-plan` prints it."""
MEDIAN_ERROR_RATIO = 0.017


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Sizes of the trainings of `make truth-plan`. All of them are dense."""

    trainings: int
    gpus: tuple[int, int]
    tp: int
    """Largest; so is `pp`."""
    pp: int
    zero: frozenset[int]
    schedules: frozenset[str]


CHECKED = Checked(
    trainings=22, gpus=(8, 16_384), tp=8, pp=64, zero=frozenset({0, 1}), schedules=frozenset({"1f1b", "interleaved"})
)


def checked(*, measured: bool) -> str:
    """Say which trainings the prediction was compared with. `measured`: it uses the rates of a run."""
    if measured:
        return (
            "11 layouts of dense models on 2 and 4 ranks of a CPU: the step is off by 11.5 % at most; no bounds of a "
            "single prediction are known"
        )
    fewest, most = CHECKED.gpus
    return (
        f"{CHECKED.trainings} published trainings of dense models on A100 and H100, with {fewest} to {most:,} GPUs, tp "
        f"up to {CHECKED.tp}, pp up to {CHECKED.pp} (1f1b and interleaved), ZeRO stages 0 and 1, one of them with cp: "
        f"MFU is off by {100 * MEDIAN_ERROR_RATIO:.1f} % in the median, and by {100 * CP_ERROR_RATIO:.1f} % at most; "
        "no bounds of a single prediction are known"
    )


def caveats(
    layout: Layout, accelerator: Accelerator, *, experts: bool = False, measured: bool = False
) -> Iterator[str]:
    """Yield the reasons not to rely on the prediction of a layout."""
    if layout.cp > 1:
        yield (
            f"the fastest layout has cp = {layout.cp}, and the only published training with cp is predicted with "
            f"{100 * CP_ERROR_RATIO:.1f} % too much MFU; compare it with --cp 1"
        )
    if accelerator.spec.name not in FITTED_ON:
        yield (
            f"no published training on {accelerator.spec.name} is compared with the prediction; the constants are "
            "fitted on A100 and H100"
        )
    if not measured and (beyond := ", ".join(_beyond(layout, experts=experts))):
        yield f"the fastest layout has {beyond}, and no published training that has is compared with the prediction"


def _beyond(layout: Layout, *, experts: bool) -> Iterator[str]:
    """Yield the properties of a layout that no checked training has."""
    if experts:
        yield "experts"
    if layout.zero not in CHECKED.zero:
        yield f"ZeRO stage {layout.zero}"
    if layout.tp > CHECKED.tp:
        yield f"tp = {layout.tp}"
    if layout.pp > CHECKED.pp:
        yield f"pp = {layout.pp}"
    if layout.pp > 1 and layout.order_name not in CHECKED.schedules:
        yield f"schedule {layout.order_name}"
    if layout.ranks > CHECKED.gpus[1]:
        yield f"{layout.ranks:,} GPUs"
