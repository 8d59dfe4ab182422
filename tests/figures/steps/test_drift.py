"""Figures of drift show the curves, their differences and the shares of each layer."""

import pytest

from traincope.engine.precision.drift import Drift, FormatDrift, Range
from traincope.figures.steps.drift import drift_page, loss_drift, lost_numbers

LAYERS = {"output": {"input": Range(numbers=4, saturated=1, underflowed=None)}}
FP32 = FormatDrift(precision="fp32", losses=(5.0, 4.0), layers={})
FP8 = FormatDrift(precision="fp8", losses=(5.0, 4.5), layers=LAYERS)
DRIFT = Drift(steps=2, formats=(FP32, FP8), refused={})


def test_curves_and_their_differences_are_drawn() -> None:
    assert [(trace.name, list(trace.y)) for trace in loss_drift(DRIFT).data] == [
        ("fp32", [5.0, 4.0]),
        ("fp8", [5.0, 4.5]),
        ("fp8", [0.0, 0.5]),
    ]


@pytest.mark.parametrize(("ratio", "share"), [("saturated_ratio", 0.25), ("underflowed_ratio", None)])
def test_a_layer_is_a_row_and_an_unknown_share_a_gap(ratio: str, share: float | None) -> None:
    (heat,) = lost_numbers(FP8, ratio=ratio).data
    assert (heat.x, heat.y, heat.z) == (("input",), ("output",), ([share],))


def test_the_page_needs_no_network() -> None:
    page = drift_page(DRIFT)
    assert page.startswith("<!doctype html>")
    assert 'src="http' not in page
