"""Checksums: every single flipped bit changes them, and its place in the word is known."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from traincope.record.state import checksum
from traincope.record.state.checksum import Checksums, is_dense
from traincope.store.job.state_checks import flipped_bit

DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn),
    *(torch.int8, torch.int64, torch.bool, torch.complex64, torch.complex128),
)
WORD_BYTES = 8


def values(count: int, dtype: torch.dtype) -> torch.Tensor:
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(count))
    return drawn > 0 if dtype is torch.bool else drawn.to(dtype)


@given(
    dtype=st.sampled_from(DTYPES),
    count=st.integers(min_value=1, max_value=200),
    place=st.floats(min_value=0, max_value=1, exclude_max=True),
    block=st.sampled_from([4, 64, 1 << 18]),
)
def test_one_flipped_bit_changes_the_sum_and_is_named(dtype: torch.dtype, count: int, place: float, block: int) -> None:
    tensor = values(count, dtype)
    raw = tensor.view(torch.uint8)
    byte, bit = divmod(int(place * raw.numel() * 8), 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "BLOCK_WORDS", block)
        checksums = Checksums()
        before = checksums.of(tensor)
        raw[byte] ^= 1 << bit
        weighted, plain = (checksums.of(tensor) - before).tolist()
    assert weighted != 0
    flipped = flipped_bit(weighted, plain)
    assert flipped is not None
    element_bytes = min(tensor.element_size(), WORD_BYTES)
    assert flipped % (8 * element_bytes) == 8 * (byte % element_bytes) + bit


@given(count=st.integers(min_value=3, max_value=300), offset=st.integers(min_value=0, max_value=2))
def test_the_sum_depends_on_the_bytes_alone(count: int, offset: int) -> None:
    """Not on where they lie in memory, nor on the blocks in which they are read on another machine."""
    tensor = values(count, torch.bfloat16)
    part = tensor[offset:]
    assert torch.equal(Checksums().of(part), Checksums().of(part.clone()))


def test_bytes_in_another_order_have_another_sum() -> None:
    tensor = values(64, torch.float32)
    (one, plain), (other, same) = Checksums().of(tensor).tolist(), Checksums().of(tensor.roll(2)).tolist()
    assert one != other
    assert plain == same


@pytest.mark.parametrize("changes", [(1, 2), (1, -1), (1 << 20, 1 << 20)])
def test_two_changed_words_are_not_taken_for_one_flipped_bit(changes: tuple[int, int]) -> None:
    words = torch.arange(16)
    before = Checksums().of(words)
    words[3] += changes[0]
    words[9] += changes[1]
    assert flipped_bit(*(Checksums().of(words) - before).tolist()) is None


def test_only_tensors_without_gaps_are_dense() -> None:
    matrix = torch.zeros(4, 6)
    assert all(map(is_dense, (matrix, matrix.t(), matrix[1:3], torch.zeros(()), torch.zeros(1, 4, 1))))
    assert is_dense(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
    assert not any(map(is_dense, (matrix[:, :3], matrix[:1].expand(4, 6), torch.zeros(8)[::2])))
