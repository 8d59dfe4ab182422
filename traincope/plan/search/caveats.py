"""Limits of a predicted layout that published trainings show."""

from collections.abc import Iterator

from traincope.plan.layout.layout import Layout
from traincope.plan.search.clusters import Accelerator

FITTED_ON = ("A100 80GB SXM", "H100 SXM")
"""Accelerators of the published trainings: `tests/truth/formulas/predicted.py`."""
CP_ERROR_RATIO = 0.335
"""Error of the predicted MFU of the only published training with cp: `make truth-plan` prints it."""


def caveats(layout: Layout, accelerator: Accelerator) -> Iterator[str]:
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
