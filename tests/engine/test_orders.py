"""Pipeline schedules, against orders drawn on paper and the promises of their papers."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.engine.orders import ORDERS, gpipe, one_forward_one_backward

shapes = st.integers(1, 8).flatmap(
    lambda stages: st.tuples(st.just(stages), st.integers(0, stages - 1), st.integers(1, 16))
)


def test_gpipe_runs_all_forwards_first() -> None:
    assert gpipe(1, stages=2, microbatches=3) == ["1F0", "1F1", "1F2", "1B0", "1B1", "1B2"]


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        (0, ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"]),
        (1, ["1F0", "1F1", "1B0", "1F2", "1B1", "1F3", "1B2", "1B3"]),
        (2, ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"]),
    ],
)
def test_one_forward_one_backward_on_three_stages(stage: int, order: list[str]) -> None:
    assert one_forward_one_backward(stage, stages=3, microbatches=4) == order


def test_one_forward_one_backward_with_fewer_microbatches_than_stages() -> None:
    assert one_forward_one_backward(0, stages=4, microbatches=2) == ["0F0", "0F1", "0B0", "0B1"]


@pytest.mark.parametrize("name", ORDERS)
@given(shape=shapes)
def test_every_microbatch_goes_forward_once_and_then_backward_once(name: str, shape: tuple[int, int, int]) -> None:
    stages, stage, microbatches = shape
    order = ORDERS[name](stage, stages=stages, microbatches=microbatches)
    assert sorted(order) == sorted(f"{stage}{kind}{m}" for kind in "FB" for m in range(microbatches))
    assert all(order.index(f"{stage}F{m}") < order.index(f"{stage}B{m}") for m in range(microbatches))


@given(shape=shapes)
def test_one_forward_one_backward_holds_at_most_stages_minus_stage_activations(shape: tuple[int, int, int]) -> None:
    stages, stage, microbatches = shape
    order = one_forward_one_backward(stage, stages=stages, microbatches=microbatches)
    held = list(accumulate(1 if "F" in action else -1 for action in order))
    assert max(held) == min(stages - stage, microbatches)
