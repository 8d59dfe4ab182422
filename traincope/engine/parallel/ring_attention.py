"""Causal attention over split sequences: keys and values go round a ring of ranks.

Liu et al. 2023, arXiv:2310.01889. No rank ever holds all keys and values.

Of 2n equal pieces rank i has the i-th and the (2n - 1 - i)-th, so that each rank computes the same share of the causal
triangle at each step of the ring (Brandon et al. 2023, arXiv:2311.09431). With its own keys that is the triangle; with
keys of an earlier rank all queries against the early piece; with keys of a later rank the late queries against both
pieces.

torch's own context parallelism has no CPU kernel and is experimental, so this is written here. It is one operator, so
that pointwise recomputation can keep its output instead of sending everything again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.engine.ranks.torch_private import flash_backward, flash_forward, group_named

OPERATOR = "traincope.ring_attention"


def zigzag(sequence: int, *, rank: int, ranks: int) -> tuple[range, range]:
    """Positions of a rank's early and late piece. `sequence` is a multiple of 2 x `ranks`."""
    piece = sequence // (2 * ranks)
    late = 2 * ranks - 1 - rank
    return range(rank * piece, (rank + 1) * piece), range(late * piece, (late + 1) * piece)


def ring_attention(query: Tensor, key: Tensor, value: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """This rank's rows of softmax(q k^T / sqrt(d)) v.

    All tensors are (B, heads, S / n, d); keys and values may have fewer heads. Rows are the tokens of `zigzag`, early
    piece first.
    """
    result: Tensor = _ring_attention(query, key, value, group.group_name)[0]
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Work of one step of the ring: some query rows against some key rows."""

    queries: slice
    keys: slice
    causal: bool


def _block(*, rank: int, owner: int, tokens: int) -> _Block:
    """Work with the keys and values of rank `owner`."""
    whole, early, late = slice(0, tokens), slice(0, tokens // 2), slice(tokens // 2, tokens)
    if owner == rank:
        return _Block(queries=whole, keys=whole, causal=True)
    if owner < rank:
        return _Block(queries=whole, keys=early, causal=False)
    return _Block(queries=late, keys=whole, causal=False)


@torch.library.custom_op("traincope::ring_attention", mutates_args=())
def _ring_attention(query: Tensor, key: Tensor, value: Tensor, group: str) -> tuple[Tensor, Tensor]:
    """Output, and the logarithm of each row's sum of exponentials, fp32 (B, heads, S / n)."""
    ring = _Ring(group)
    out = torch.zeros_like(query, dtype=torch.float32, memory_format=torch.contiguous_format)
    log_sum = torch.full(query.shape[:-1], -torch.inf, dtype=torch.float32, device=query.device)
    for owner, (keys, values) in ring.visits(torch.stack((key, value))):
        block = _block(rank=ring.rank, owner=owner, tokens=query.shape[2])
        rows = block.queries
        part, part_log_sum = flash_forward(
            query[:, :, rows], keys[:, :, block.keys], values[:, :, block.keys], causal=block.causal
        )
        merged = torch.logaddexp(log_sum[:, :, rows], part_log_sum)
        out[:, :, rows] *= (log_sum[:, :, rows] - merged).exp().unsqueeze(-1)
        out[:, :, rows] += part * (part_log_sum - merged).exp().unsqueeze(-1)
        log_sum[:, :, rows] = merged
    return out.type_as(query), log_sum


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    """Gradients of query, key and value.

    With the whole row's output and logarithm, each block's part of the gradients is exact. Keys and values go round
    once more. Their gradients follow, and each rank adds to them; after n hops they are back at their owner.
    """
    query, key, value, out, log_sum = ctx.saved_tensors
    gradient = gradient.contiguous()
    ring = _Ring(ctx.group)
    query_gradient = torch.zeros_like(query, dtype=torch.float32)
    key_value_gradients = torch.zeros((2, *key.shape), dtype=torch.float32, device=key.device)
    for owner, (keys, values) in ring.visits(torch.stack((key, value))):
        block = _block(rank=ring.rank, owner=owner, tokens=query.shape[2])
        rows = block.queries
        parts = flash_backward(
            gradient[:, :, rows],
            query[:, :, rows],
            keys[:, :, block.keys],
            values[:, :, block.keys],
            out[:, :, rows],
            log_sum[:, :, rows],
            causal=block.causal,
        )
        query_gradient[:, :, rows] += parts[0]
        key_value_gradients[0][:, :, block.keys] += parts[1]
        key_value_gradients[1][:, :, block.keys] += parts[2]
        key_value_gradients = ring.shift(key_value_gradients)
    return (
        query_gradient.type_as(query),
        key_value_gradients[0].type_as(key),
        key_value_gradients[1].type_as(value),
        None,
    )


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, str], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors, *output)


_ring_attention.register_autograd(_backward, setup_context=_save)


class _Ring:
    """A ring of ranks: rank i sends to i + 1 and receives from i - 1."""

    def __init__(self, group: str) -> None:
        self._group = group_named(group)
        self.rank, self._size = dist.get_rank(self._group), dist.get_world_size(self._group)

    def visits(self, held: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (owner, tensor) of each rank, this one's first. The next tensor travels while one is used."""
        for step in range(self._size):
            last = step == self._size - 1
            arriving, works = (held, []) if last else self._exchange(held)
            yield (self.rank - step) % self._size, held
            for work in works:
                work.wait()
            held = arriving

    def shift(self, tensor: Tensor) -> Tensor:
        """Send a tensor to the next rank and return the previous rank's tensor."""
        arriving, works = self._exchange(tensor)
        for work in works:
            work.wait()
        return arriving

    def _exchange(self, tensor: Tensor) -> tuple[Tensor, list[dist.Work]]:
        arriving = torch.empty_like(tensor)
        after, before = (self.rank + 1) % self._size, (self.rank - 1) % self._size
        return arriving, dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, group=self._group, group_peer=after),
                dist.P2POp(dist.irecv, arriving, group=self._group, group_peer=before),
            ]
        )
