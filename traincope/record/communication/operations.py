"""The c10d operators: the positions of group, peer and bytes in the arguments of each.

Bytes are counted as nccl-tests do: the whole output of a gather, the whole input of a scatter or a reduce-scatter, the
send buffer of any other operation. A row is one operator of torch's `csrc/distributed/c10d/Ops.cpp`, its arguments by
position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from traincope.events import ELEMENT_SHIFT, Element


class Shape(Enum):
    """Shape of the argument with an operator's message. The values are those of `native/dispatch/operations.h`."""

    NOTHING = 0
    TENSOR = 1
    LIST = 2
    NESTED = 3


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
    message: tuple[Shape, int]
    """Shape and position of the argument whose bytes count."""
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

    @property
    def num_bytes(self) -> Callable[[Sequence[Any]], int]:
        """The function from the arguments to the bytes of the message."""
        shape, position = self.message
        return _NUM_BYTES[shape](position)

    def on_device(self, arguments: Sequence[Any]) -> bool:
        """Return whether its tensors are on a GPU."""
        first = arguments[0]
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        return bool(getattr(first, "is_cuda", False))


def element_flags() -> dict[object, int]:
    """Return the flags of each type of element."""
    import torch

    known = {
        torch.float32: Element.FLOAT32,
        torch.bfloat16: Element.BFLOAT16,
        torch.float16: Element.FLOAT16,
        torch.float64: Element.FLOAT64,
        torch.int16: Element.INTEGER,
        torch.int32: Element.INTEGER,
        torch.int64: Element.INTEGER,
    }
    types = (each for each in vars(torch).values() if isinstance(each, torch.dtype))
    small = {each: Element.BYTE if each.itemsize == 1 else Element.OTHER for each in types}
    return {each: int(element) << ELEMENT_SHIFT for each, element in (small | known).items()}


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


_NUM_BYTES: dict[Shape, Callable[[int], Callable[[Sequence[Any]], int]]] = {
    Shape.NOTHING: lambda _: lambda _: 0,
    Shape.TENSOR: _tensor_bytes,
    Shape.LIST: _list_bytes,
    Shape.NESTED: _nested_bytes,
}

NO_MESSAGE = (Shape.NOTHING, 0)


OPERATIONS = (
    Operation(op="allreduce_", name="all_reduce", group=1, message=(Shape.LIST, 0), async_op=4, fills=Output.LIST),
    Operation(
        op="allreduce_coalesced_", name="all_reduce", group=1, message=(Shape.LIST, 0), async_op=3, fills=Output.LIST
    ),
    Operation(op="reduce_", name="reduce", group=1, message=(Shape.LIST, 0), peer=3, async_op=5),
    Operation(
        op="broadcast_", name="broadcast", group=1, message=(Shape.LIST, 0), peer=2, async_op=4, fills=Output.LIST
    ),
    Operation(op="allgather_", name="all_gather", group=2, message=(Shape.NESTED, 0), async_op=3),
    Operation(
        op="_allgather_base_", name="all_gather", group=2, message=(Shape.TENSOR, 0), async_op=3, fills=Output.TENSOR
    ),
    Operation(op="allgather_coalesced_", name="all_gather", group=2, message=(Shape.NESTED, 0), async_op=3),
    Operation(
        op="allgather_into_tensor_coalesced_",
        name="all_gather",
        group=2,
        message=(Shape.LIST, 0),
        async_op=3,
        fills=Output.LIST,
    ),
    Operation(op="reduce_scatter_", name="reduce_scatter", group=2, message=(Shape.NESTED, 1), async_op=4),
    Operation(
        op="_reduce_scatter_base_",
        name="reduce_scatter",
        group=2,
        message=(Shape.TENSOR, 1),
        async_op=4,
        fills=Output.TENSOR,
    ),
    Operation(
        op="reduce_scatter_tensor_coalesced_",
        name="reduce_scatter",
        group=2,
        message=(Shape.LIST, 1),
        async_op=4,
        fills=Output.LIST,
    ),
    Operation(op="gather_", name="gather", group=2, message=(Shape.NESTED, 0), peer=3, async_op=4),
    Operation(op="scatter_", name="scatter", group=2, message=(Shape.NESTED, 1), peer=3, async_op=4),
    Operation(op="alltoall_", name="all_to_all", group=2, message=(Shape.LIST, 1), async_op=3),
    Operation(
        op="alltoall_base_", name="all_to_all", group=2, message=(Shape.TENSOR, 1), async_op=5, fills=Output.TENSOR
    ),
    Operation(op="barrier", name="barrier", group=1, message=NO_MESSAGE, async_op=3),
    Operation(op="monitored_barrier_", name="monitored_barrier", group=1, message=NO_MESSAGE, blocking=True),
    Operation(op="send", name="send", group=1, message=(Shape.LIST, 0), peer=2, tag=3),
    Operation(op="recv_", name="recv", group=1, message=(Shape.LIST, 0), peer=2, tag=3),
    Operation(op="recv_any_source_", name="recv_any_source", group=1, message=(Shape.LIST, 0), tag=2),
)
