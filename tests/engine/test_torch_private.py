"""The private names of torch that the engine stands on are there, in the torch that is installed."""

import operator

import pytest
import torch
from torch.distributed.pipelining import schedules

from traincope.engine.torch_private import DEAR_OPERATORS, PRIVATE_NAMES, dear_operators


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_torch_still_has(name: str) -> None:
    assert callable(operator.attrgetter(name)(schedules))


def test_actions_are_still_written_as_the_orders_write_them() -> None:
    action = schedules._Action.from_str("3F11")
    assert (action.stage_index, action.computation_type, action.microbatch_index) == (
        3,
        schedules.FORWARD,
        11,
    )
    assert str(schedules._Action.from_str("0B2")) == "0B2"


def test_torch_still_has_the_operators_worth_keeping() -> None:
    assert [str(operator) for operator in dear_operators()] == [f"{name}.default" for name in DEAR_OPERATORS]
    assert all(isinstance(operator, torch._ops.OpOverload) for operator in dear_operators())
