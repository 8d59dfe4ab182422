"""Judgement of a row of the FLOPs table; tests/distributed/costs/test_flops.py trains whole layouts."""

import math
from dataclasses import replace

import pytest

from evaluation.truth.formulas.flops import Row

ROW = Row(layout="", quantity="recomputed", truth=0, measured=99, model=10_000)


def test_an_error_is_a_share_of_the_models_flops() -> None:
    assert ROW.error == 0.0099
    assert ROW.holds


@pytest.mark.parametrize("measured", [101, -101, math.nan])
def test_a_wrong_or_missing_count_does_not_hold(measured: float) -> None:
    assert not replace(ROW, measured=measured).holds
