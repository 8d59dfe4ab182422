"""Context parallelism: every sequence cut over the `cp` axis, attention alone sees the whole of it.

All else in a block is a token's own affair. To parameters the ranks of `cp` are like those of `fsdp`, or of `dp`: they
see different tokens, so gradients are averaged over both, and parameters sharded over both, or whole on each.
"""

import functools
from types import MappingProxyType

import torch
from torch import Tensor

from traincope.engine.attention import Attention, Core
from traincope.engine.config import Config
from traincope.engine.mesh import Layout
from traincope.engine.model import GPT
from traincope.engine.ring_attention import ring_attention, zigzag
from traincope.engine.rotary import Positions
from traincope.engine.ulysses import ulysses_attention
from traincope.errors import ConfigError

METHODS = MappingProxyType({"ring": ring_attention, "ulysses": ulysses_attention})
"""Name in a configuration -> attention over this rank's tokens, called as `method(query, key, value, group=...)`."""


def own_positions(config: Config, *, layout: Layout) -> Positions:
    """Where in a sequence this rank's tokens stand, in the order in which it holds them."""
    return positions_of(config, rank=layout.coordinate("cp"))


def positions_of(config: Config, *, rank: int) -> Positions:
    """As `own_positions`, of any rank of `cp`."""
    ranks, sequence = config.parallel.cp, config.model.sequence
    if ranks > 1 and config.parallel.cp_method == "ring":
        return zigzag(sequence, rank=rank, ranks=ranks)
    return (range(rank * sequence // ranks, (rank + 1) * sequence // ranks),)


def own_tokens(batch: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
    """Tokens (B, S + 1) -> inputs and targets at the positions, each contiguous (B, S / cp)."""
    inputs, targets = (
        torch.cat([batch[:, piece.start + ahead : piece.stop + ahead] for piece in positions], dim=1)
        for ahead in (0, 1)
    )
    return inputs, targets


def apply_context_parallel(model: GPT, config: Config, *, layout: Layout) -> None:
    """Tell a model's attention which tokens it has, and how it meets the others; nothing without a `cp` axis.

    Raises ConfigError where the device has no kernel for it.
    """
    group = layout.group("cp")
    if group is None:
        return
    check_kernel(config, device_type=layout.submesh("cp").device_type)
    method = METHODS[config.parallel.cp_method]
    for module in model.modules():
        if isinstance(module, Attention):
            module.positions = own_positions(config, layout=layout)
        if isinstance(module, Core):
            module.attend = functools.partial(method, group=group)


def check_kernel(config: Config, *, device_type: str) -> None:
    """The ring merges parts of attention by their logarithms, which on a GPU only the 16-bit kernel returns."""
    parallel = config.parallel
    if device_type != "cpu" and parallel.cp_method == "ring" and config.train.precision == "fp32":
        raise ConfigError(
            "parallel.cp_method = 'ring' has no fp32 kernel on a GPU; set train.precision = 'bf16', or cp_method = "
            "'ulysses'"
        )
