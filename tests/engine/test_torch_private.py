"""The private names of torch that the engine stands on are there, in the torch that is installed."""

import operator

import pytest
from torch.distributed.pipelining import schedules

from traincope.engine.torch_private import PRIVATE_NAMES


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
