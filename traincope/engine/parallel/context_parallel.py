"""Context parallelism: each sequence is split over the `cp` axis, and only attention sees all of it.

The rest of a block works on each token alone. To parameters the ranks of `cp` are like those of `fsdp` or `dp`: they
see different tokens. Gradients are averaged over both axes, and parameters are sharded over both or whole on each rank.
"""

import functools
from types import MappingProxyType

import torch
from torch import Tensor

from traincope.engine.config import Config
from traincope.engine.model.attention import Attention, Core
from traincope.engine.model.model import GPT
from traincope.engine.model.rotary import Positions
from traincope.engine.parallel.ring_attention import ring_attention, zigzag
from traincope.engine.parallel.ulysses import ulysses_attention
from traincope.engine.ranks.mesh import Layout
from traincope.errors import ConfigError

METHODS = MappingProxyType({"ring": ring_attention, "ulysses": ulysses_attention})
"""Name in a configuration -> attention over this rank's tokens, `method(query, key, value, group=...)`."""


def local_positions(config: Config, *, layout: Layout) -> Positions:
    """Positions of this rank's tokens in a sequence, in the order in which it holds them."""
    return cp_positions(config, rank=layout.coordinate("cp"))


def cp_positions(config: Config, *, rank: int) -> Positions:
    """Positions of the tokens of any rank of `cp`, as in `local_positions`."""
    ranks, sequence = config.parallel.cp, config.model.sequence
    if ranks > 1 and config.parallel.cp_method == "ring":
        return zigzag(sequence, rank=rank, ranks=ranks)
    return (range(rank * sequence // ranks, (rank + 1) * sequence // ranks),)


def local_tokens(batch: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
    """Tokens (B, S + 1) -> inputs and targets at the positions, each contiguous (B, S / cp)."""
    inputs, targets = (
        torch.cat([batch[:, piece.start + ahead : piece.stop + ahead] for piece in positions], dim=1)
        for ahead in (0, 1)
    )
    return inputs, targets


def apply_context_parallel(model: GPT, config: Config, *, layout: Layout) -> None:
    """Set the positions and the attention function of each layer. Does nothing without a `cp` axis.

    Raises ConfigError where the device has no kernel for the method.
    """
    group = layout.group("cp")
    if group is None:
        return
    check_kernel(config, device_type=layout.submesh("cp").device_type)
    method = METHODS[config.parallel.cp_method]
    for module in model.modules():
        if isinstance(module, Attention):
            module.positions = local_positions(config, layout=layout)
        if isinstance(module, Core):
            module.attend = functools.partial(method, group=group)


def check_kernel(config: Config, *, device_type: str) -> None:
    """Refuse ring attention in fp32 on a GPU.

    The ring merges parts of attention by their logarithms, which only the 16-bit GPU kernel returns.
    """
    parallel = config.parallel
    if device_type != "cpu" and parallel.cp_method == "ring" and config.train.precision == "fp32":
        raise ConfigError(
            "parallel.cp_method = 'ring' has no fp32 kernel on GPUs; set train.precision = 'bf16', or cp_method = "
            "'ulysses'"
        )
