"""Activation recomputation: backward computes some activations again instead of keeping them.

`full` keeps only a block's input (Chen et al. 2016, arXiv:1604.06174).

`selective` keeps everything except the values between queries, keys and values and the output's product (Korthikanti et
al. 2022, arXiv:2205.05198, section 5), and computes attention again. Most of its saving are scores, which fused
attention never keeps. Here it saves a block's attention before its heads are joined, and one number per head and token.

`pointwise` keeps results that are costly to compute and small to keep: outputs of matrix products, attention and
communication. Norms, rotations and SwiGLU's pointwise part are computed again.

A pipeline whose schedule splits backward calls autograd once for I and then once for each weight in W. torch's
checkpoint would compute a block again in each call. Here I computes it again, and the result is kept until W.
"""

import functools
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from traincope.engine.model.documents import Documents
from traincope.engine.model.model import GPT, Block
from traincope.engine.parallel.dispatch import OPERATOR as EXPERTS
from traincope.engine.parallel.ring_attention import OPERATOR as RING
from traincope.engine.parallel.ulysses import OPERATOR as EXCHANGE
from traincope.engine.ranks.torch_private import costly_operators, in_backward, innermost_saved_tensors_hooks

Run = Callable[..., Tensor]
"""Runs a module, given first, on the other arguments."""


def apply_recompute(
    model: GPT,
    mode: Literal["none", "pointwise", "selective", "full"],
    *,
    layers: int | None = None,
    splits_backward: bool = False,
) -> None:
    """Set how the model runs its first `layers` blocks, or the cores of their attention. None: all blocks.

    `splits_backward`: several calls of autograd need the same activations.
    """
    run = functools.partial(_run_with_recompute, splits_backward=splits_backward)
    run_block = functools.partial(run, preserve_rng_state=model.config.dropout > 0)
    if mode == "pointwise":
        keep = functools.partial(create_selective_checkpoint_contexts, costly_operators(RING, EXCHANGE, EXPERTS))
        run_block = functools.partial(run_block, context_fn=keep)
    for name, block in list(model.blocks.items())[:layers]:
        assert isinstance(block, Block)
        if mode == "selective":
            block.attention.core = RecomputedCore(block.attention.core, run=run)
        elif mode != "none":
            model.run_block[name] = run_block


def _run_with_recompute(
    module: nn.Module,
    *inputs: Tensor,
    splits_backward: bool,
    preserve_rng_state: bool = False,
    **arguments: Any,
) -> Tensor:
    """Run a module and keep only its inputs. A module that draws random numbers must set `preserve_rng_state`."""
    run = functools.partial(_run_once_again, module) if splits_backward else module
    result: Tensor = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=preserve_rng_state, **arguments)
    return result


def _run_once_again(module: nn.Module, *inputs: Tensor, **arguments: Any) -> Tensor:
    """Run a module inside a checkpoint whose activations are computed again at most once."""
    forward = torch.is_grad_enabled() and not in_backward()
    with _Again(*innermost_saved_tensors_hooks()).hooks() if forward else nullcontext():
        result: Tensor = module(*inputs, **arguments)
        return result


class _Saved:
    """A place of autograd's graph: empty until backward, then with its tensor until the graph is freed."""

    __slots__ = ("__weakref__", "packed", "tensor")

    def __init__(self, packed: object) -> None:
        self.packed = packed
        self.tensor: Tensor | None = None


class _Again:
    """Fills all places of a checkpoint at the first call of autograd that needs one of them."""

    def __init__(self, pack: Callable[[Tensor], object], unpack: Callable[[Any], Tensor]) -> None:
        """`pack` and `unpack` are those of the checkpoint, which computes again in each call of autograd."""
        self._pack, self._unpack = pack, unpack
        self._places: list[weakref.ref[_Saved]] = []

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._put, self._get)

    def _put(self, tensor: Tensor) -> _Saved:
        place = _Saved(self._pack(tensor))
        self._places.append(weakref.ref(place))
        return place

    def _get(self, place: _Saved) -> Tensor:
        if place.tensor is None:
            for each in self._alive():
                each.tensor = self._unpack(each.packed)
        assert place.tensor is not None
        return place.tensor

    def _alive(self) -> list[_Saved]:
        return [place for reference in self._places if (place := reference()) is not None]


class RecomputedCore(nn.Module):
    """Attention's core that keeps only its inputs."""

    def __init__(self, core: nn.Module, *, run: Run) -> None:
        super().__init__()
        self.core = core
        self._run = run

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, documents: Documents | None = None) -> Tensor:
        return self._run(self.core, query, key, value, documents=documents)
