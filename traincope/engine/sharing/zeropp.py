"""ZeRO++ (Wang et al. 2023, arXiv:2306.10209): less communication, through two extension points of FSDP2.

qwZ gathers parameters as int8. hpZ keeps a copy of the parameters in each node from forward to backward, sharded over
the node's ranks, so that backward gathers within the node. qgZ exchanges gradients as int8 and sums them in fp32; each
number is quantized once. The paper's second hop from node to node is not implemented.

torch's `reshard_after_forward=n` is hpZ too, but it creates two unnamed process groups per unit, and would quantize a
second time when backward gathers.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from traincope.engine.config import FSDPConfig
from traincope.engine.ranks.mesh import Layout
from traincope.engine.ranks.torch_private import DefaultAllGather, DefaultAllocMixin, ReduceScatter, in_backward, unfold
from traincope.engine.sharing.quantized import dequantize, quantize

NODES, NODE = "fsdp_nodes", "fsdp_node"
"""Names of the shard axis as two axes: across nodes, and within one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This rank's node, on a mesh of (nodes, ranks per node)."""

    mesh: DeviceMesh

    @property
    def group(self) -> dist.ProcessGroup:
        return self.mesh.get_group(NODE)

    def node_part(self, gathered: Tensor) -> Tensor:
        """Part of a whole unit that this rank keeps for its node."""
        return gathered.chunk(self.mesh[NODE].size())[self.mesh.get_local_rank(NODE)].clone()


class Gather(DefaultAllGather):
    """Gathers one unit's parameters. It has finished when the call returns, so it returns no Work to wait for."""

    def __init__(self, *, node: Node | None, block: int | None) -> None:
        """`block` None gathers numbers without quantization."""
        self._node = node
        self._block = block
        self._node_copy: Tensor | None = None
        """This rank's part of the node's copy, from forward to backward."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        del async_op
        node_copy, self._node_copy = self._node_copy, None
        if self._node is not None and node_copy is not None and in_backward():
            super().__call__(output_tensor, node_copy, self._node.group)
            return
        if self._block is None:
            super().__call__(output_tensor, input_tensor, group)
        else:
            self._gather_quantized(output_tensor, input_tensor, group=group, block=self._block)
        if self._node is not None:
            self._node_copy = self._node.node_part(output_tensor)

    def _gather_quantized(self, output: Tensor, part: Tensor, *, group: dist.ProcessGroup, block: int) -> None:
        """Gather quantized parts.

        A rank's own part is quantized as well: all ranks must compute with the same parameters.
        """
        message = quantize(part.unsqueeze(0), block=block)
        messages = message.new_empty(group.size(), message.shape[1])
        super().__call__(messages.flatten(), message.flatten(), group)
        output.copy_(dequantize(messages, count=part.numel(), block=block).flatten())


class QuantizedReduceScatter(DefaultAllocMixin, ReduceScatter):
    """Each rank sends each other rank its share of the gradients as int8, and sums what it receives."""

    def __init__(self, *, block: int) -> None:
        self._block = block

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        del async_op
        messages = quantize(input_tensor.view(group.size(), -1), block=self._block)
        received = torch.empty_like(messages)
        dist.all_to_all_single(received, messages, group=group)
        total = dequantize(received, count=output_tensor.numel(), block=self._block).sum(dim=0)
        output_tensor.copy_(total / group.size() if op == dist.ReduceOp.AVG else total)


def compress(model: nn.Module, settings: FSDPConfig, *, layout: Layout) -> None:
    """Apply `settings` to each unit of a sharded model. Does nothing without shards."""
    if not layout.sharded:
        return
    node = _node(settings, layout=layout)
    block = settings.quantization_block
    for unit in (cast(FSDPModule, module) for module in model.modules() if isinstance(module, FSDPModule)):
        if settings.quantize_weights or node is not None:
            unit.set_custom_all_gather(Gather(node=node, block=block if settings.quantize_weights else None))
        if settings.quantize_gradients:
            unit.set_custom_reduce_scatter(QuantizedReduceScatter(block=block))


def _node(settings: FSDPConfig, *, layout: Layout) -> Node | None:
    if settings.node_ranks is None:
        return None
    sizes = {NODES: layout.size(layout.shard_axis) // settings.node_ranks, NODE: settings.node_ranks}
    return Node(mesh=unfold(layout.submesh(layout.shard_axis), layout.shard_axis, sizes=sizes))
