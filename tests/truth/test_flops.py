"""When a row of the table holds; whole layouts are trained in tests/distributed/test_flops.py."""

import math
from dataclasses import replace

import pytest

from tests.truth.flops import Row

ROW = Row(layout="", what="recomputed", truth=0, measured=99, model=10_000)


def test_an_error_is_a_share_of_the_models_flops() -> None:
    assert ROW.error == 0.0099
    assert ROW.holds


@pytest.mark.parametrize("measured", [101, -101, math.nan])
def test_what_is_off_or_was_not_counted_does_not_hold(measured: float) -> None:
    assert not replace(ROW, measured=measured).holds
