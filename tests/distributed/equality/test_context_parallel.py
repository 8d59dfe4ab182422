"""Attention over a split sequence equals attention over the whole one, forward and backward."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from tests.distributed.ranks.pool import Pool
from traincope.engine.config import Config, ModelConfig, ParallelConfig
from traincope.engine.model.rotary import Positions
from traincope.engine.parallel.context_parallel import METHODS, local_positions, local_tokens
from traincope.engine.parallel.ring_attention import zigzag
from traincope.engine.ranks.mesh import build_layout

CPU = torch.device("cpu")
TOLERANCE = 2e-6
"""Largest absolute error in fp32, of numbers around 1."""
SEQUENCE = 32
CONFIG = Config(model=ModelConfig(sequence=SEQUENCE))
Method = Literal["ring", "ulysses"]


def inputs(heads: int, kv_heads: int) -> list[Tensor]:
    """Query, key, value and the gradient of the output, each (2, heads, 32, 8)."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, n, SEQUENCE, 8, generator=generator) for n in (heads, kv_heads, kv_heads, heads)]


def expected(heads: int, kv_heads: int) -> list[Tensor]:
    """Output and gradients of query, key and value."""
    *tensors, gradient = inputs(heads, kv_heads)
    for tensor in tensors:
        tensor.requires_grad_()
    out = functional.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
    out.backward(gradient)
    return [out.detach(), *(tensor.grad for tensor in tensors if tensor.grad is not None)]


def largest_errors(method: Method, heads: int, kv_heads: int) -> list[float]:
    """Largest errors of output and gradients, on this rank's tokens."""
    config = replace(CONFIG, parallel=ParallelConfig(cp=dist.get_world_size(), cp_method=method))
    layout = build_layout(config.parallel, device=CPU)
    pieces = local_positions(config, layout=layout)

    def local_piece(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:, :, piece.start : piece.stop] for piece in pieces], dim=2)

    *tensors, gradient = map(local_piece, inputs(heads, kv_heads))
    for tensor in tensors:
        tensor.requires_grad_()
    group = layout.group("cp")
    assert group is not None
    out = METHODS[method](*tensors, group=group)
    out.backward(gradient)
    results = [out, *(tensor.grad for tensor in tensors)]
    return [
        (result - local_piece(other)).abs().max().item()
        for result, other in zip(results, expected(heads, kv_heads), strict=True)
    ]


CASES = [("ring", 4, 4), ("ring", 4, 2), ("ring", 4, 1), ("ulysses", 4, 4), ("ulysses", 8, 4)]


@pytest.mark.parametrize(("method", "heads", "kv_heads"), CASES)
def test_attention_of_two_ranks_equals_that_of_one(two_ranks: Pool, method: Method, heads: int, kv_heads: int) -> None:
    for errors in two_ranks.run(largest_errors, method, heads, kv_heads):
        assert max(errors) <= TOLERANCE


@pytest.mark.parametrize(("method", "heads", "kv_heads"), CASES)
def test_attention_of_four_ranks_equals_that_of_one(
    four_ranks: Pool, method: Method, heads: int, kv_heads: int
) -> None:
    for errors in four_ranks.run(largest_errors, method, heads, kv_heads):
        assert max(errors) <= TOLERANCE


def held(parallel: ParallelConfig) -> tuple[Positions, list[int], int]:
    """Positions; the inputs at these positions, where token i of a sequence is i; and the slice of the batch."""
    config = replace(CONFIG, parallel=parallel)
    layout = build_layout(parallel, device=CPU)
    positions = local_positions(config, layout=layout)
    inputs, targets = local_tokens(torch.arange(SEQUENCE + 1).expand(2, -1), positions)
    assert torch.equal(targets, inputs + 1)
    assert inputs.is_contiguous()
    return positions, inputs[1].tolist(), layout.replica


def test_ranks_of_cp_share_sequences_and_ranks_of_fsdp_do_not(four_ranks: Pool) -> None:
    """A zigzag over two ranks gives the first the outer quarters of a sequence, the second the inner ones."""
    outer = ((range(8), range(24, 32)), [*range(8), *range(24, 32)])
    inner = ((range(8, 16), range(16, 24)), [*range(8, 24)])
    assert four_ranks.run(held, ParallelConfig(fsdp=2, cp=2)) == [(*outer, 0), (*inner, 0), (*outer, 1), (*inner, 1)]


def test_ranks_of_tp_and_pp_see_the_same_tokens(four_ranks: Pool) -> None:
    first, second = ((range(16),), [*range(16)], 0), ((range(16, 32),), [*range(16, 32)], 0)
    assert four_ranks.run(held, ParallelConfig(cp=2, cp_method="ulysses", tp=2)) == [first, first, second, second]
    assert four_ranks.run(held, ParallelConfig(pp=2, cp=2, cp_method="ulysses")) == [first, second, first, second]


def test_a_zigzag_covers_the_sequence_with_equal_work_per_rank() -> None:
    pieces = [zigzag(24, rank=rank, ranks=3) for rank in range(3)]
    assert pieces == [
        (range(4), range(20, 24)),
        (range(4, 8), range(16, 20)),
        (range(8, 12), range(12, 16)),
    ]
    assert [sum(position + 1 for piece in both for position in piece) for both in pieces] == [100, 100, 100]
