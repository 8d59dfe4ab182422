"""Blocks of int8: an example on paper, and bounds on the error of a number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from traincope.engine.sharing.quantized import dequantize, message_bytes, quantize


def round_trip(numbers: Tensor, *, block: int) -> Tensor:
    return dequantize(quantize(numbers, block=block), count=numbers.shape[1], block=block)


def test_a_block_on_paper() -> None:
    """The largest, 63.5, is 127 steps of 0.5; 1.2 is 2.4 steps; 0.75 is halfway and rounds to the even 2."""
    message = quantize(torch.tensor([[63.5, -31.5, 1.2, 0.75]]), block=4)
    assert message[0, 4:].view(torch.int8).tolist() == [127, -63, 2, 2]
    assert message[0, :4].clone().view(torch.float32).tolist() == [0.5]


@pytest.mark.parametrize(("count", "num_bytes"), [(1, 8), (4, 8), (5, 16), (8, 16)])
def test_a_message_has_four_bytes_of_scale_per_block(count: int, num_bytes: int) -> None:
    assert message_bytes(count, block=4) == num_bytes
    assert quantize(torch.ones(3, count), block=4).shape == (3, num_bytes)


@given(
    st.lists(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=7, max_size=7), min_size=1, max_size=3),
    st.sampled_from([4, 8]),
)
def test_the_error_of_a_number_is_at_most_half_a_step_of_its_block(rows: list[list[float]], block: int) -> None:
    numbers = torch.tensor(rows)
    errors = (round_trip(numbers, block=block) - numbers).abs().double()
    for start in range(0, 7, block):
        largest = numbers[:, start : start + block].abs().amax(dim=1, keepdim=True).double()
        assert torch.all(errors[:, start : start + block] <= largest / 254 * (1 + 1e-5) + 1e-37)


def test_blocks_are_independent() -> None:
    small = torch.full((1, 4), 1e-3)
    torch.testing.assert_close(round_trip(torch.cat((small, 1e3 * small), dim=1), block=4)[:, :4], small)


@pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
def test_a_nan_turns_its_block_into_nan(broken: float) -> None:
    returned = round_trip(torch.tensor([[1.0, broken, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]]), block=4)
    assert not torch.isfinite(returned[0, 1])
    assert torch.equal(returned[0, 4:], torch.full((4,), 2.0))


def test_bf16_is_quantized_like_fp32() -> None:
    numbers = torch.tensor([[0.5, -0.25, 1.0, 0.0]], dtype=torch.bfloat16)
    torch.testing.assert_close(round_trip(numbers, block=4), numbers.float(), atol=1 / 254, rtol=0.0)
