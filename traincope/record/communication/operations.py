"""The c10d operators: the positions of group, peer and bytes in the arguments of each.

Bytes are counted as nccl-tests do: the whole output of a gather, the whole input of a scatter or a reduce-scatter, the
send buffer of any other operation. A row is one operator of torch's `csrc/distributed/c10d/Ops.cpp`, its arguments by
position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Output(Enum):
    """Shape of an operator's output argument."""

    TENSOR = "Tensor"
    LIST = "Tensor[]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    op: str
    """Operator name in the `c10d` namespace."""
    name: str
    """Name of the operation in the record."""
    group: int
    """Position of the process group."""
    num_bytes: Callable[[Sequence[Any]], int]
    peer: int | None = None
    """Position of the root (collective) or of the peer (point to point)."""
    tag: int | None = None
    """Position of the tag. Only point-to-point operations have one."""
    async_op: int | None = None
    """Position of `async_op`, as in torch 2.7 and later."""
    blocking: bool = False
    """True if the operator itself blocks and returns no work."""
    fills: Output | None = None
    """Kind of the output, argument 0, for the operators under functional collectives."""

    def on_device(self, arguments: Sequence[Any]) -> bool:
        """Return whether its tensors are on a GPU."""
        first = arguments[0]
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        return bool(getattr(first, "is_cuda", False))


def _tensor_bytes(position: int) -> Callable[[Sequence[Any]], int]:
    return lambda arguments: int(arguments[position].nbytes)


def _list_bytes(position: int) -> Callable[[Sequence[Any]], int]:
    def num_bytes(arguments: Sequence[Any]) -> int:
        tensors = arguments[position]
        if len(tensors) == 1:
            return int(tensors[0].nbytes)
        return sum(tensor.nbytes for tensor in tensors)

    return num_bytes


def _nested_bytes(position: int) -> Callable[[Sequence[Any]], int]:
    return lambda arguments: sum(tensor.nbytes for row in arguments[position] for tensor in row)


def _no_bytes(_: Sequence[Any]) -> int:
    return 0


OPERATIONS = (
    Operation(op="allreduce_", name="all_reduce", group=1, num_bytes=_list_bytes(0), async_op=4, fills=Output.LIST),
    Operation(
        op="allreduce_coalesced_", name="all_reduce", group=1, num_bytes=_list_bytes(0), async_op=3, fills=Output.LIST
    ),
    Operation(op="reduce_", name="reduce", group=1, num_bytes=_list_bytes(0), peer=3, async_op=5),
    Operation(
        op="broadcast_", name="broadcast", group=1, num_bytes=_list_bytes(0), peer=2, async_op=4, fills=Output.LIST
    ),
    Operation(op="allgather_", name="all_gather", group=2, num_bytes=_nested_bytes(0), async_op=3),
    Operation(
        op="_allgather_base_", name="all_gather", group=2, num_bytes=_tensor_bytes(0), async_op=3, fills=Output.TENSOR
    ),
    Operation(op="allgather_coalesced_", name="all_gather", group=2, num_bytes=_nested_bytes(0), async_op=3),
    Operation(
        op="allgather_into_tensor_coalesced_",
        name="all_gather",
        group=2,
        num_bytes=_list_bytes(0),
        async_op=3,
        fills=Output.LIST,
    ),
    Operation(op="reduce_scatter_", name="reduce_scatter", group=2, num_bytes=_nested_bytes(1), async_op=4),
    Operation(
        op="_reduce_scatter_base_",
        name="reduce_scatter",
        group=2,
        num_bytes=_tensor_bytes(1),
        async_op=4,
        fills=Output.TENSOR,
    ),
    Operation(
        op="reduce_scatter_tensor_coalesced_",
        name="reduce_scatter",
        group=2,
        num_bytes=_list_bytes(1),
        async_op=4,
        fills=Output.LIST,
    ),
    Operation(op="gather_", name="gather", group=2, num_bytes=_nested_bytes(0), peer=3, async_op=4),
    Operation(op="scatter_", name="scatter", group=2, num_bytes=_nested_bytes(1), peer=3, async_op=4),
    Operation(op="alltoall_", name="all_to_all", group=2, num_bytes=_list_bytes(1), async_op=3),
    Operation(
        op="alltoall_base_", name="all_to_all", group=2, num_bytes=_tensor_bytes(1), async_op=5, fills=Output.TENSOR
    ),
    Operation(op="barrier", name="barrier", group=1, num_bytes=_no_bytes, async_op=3),
    Operation(op="monitored_barrier_", name="barrier", group=1, num_bytes=_no_bytes, blocking=True),
    Operation(op="send", name="send", group=1, num_bytes=_list_bytes(0), peer=2, tag=3),
    Operation(op="recv_", name="recv", group=1, num_bytes=_list_bytes(0), peer=2, tag=3),
    Operation(op="recv_any_source_", name="recv_any_source", group=1, num_bytes=_list_bytes(0), tag=2),
)
