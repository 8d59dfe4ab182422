"""Collectives as Python asks process groups for them, where ours cannot stand in front of the dispatcher's operators.

`dist.*`, FSDP2, pipelines and batches of sends all call a method of `ProcessGroup`, under whatever name
a script has imported them. What C++ issues by itself passes none of these: functional collectives,
DTensor, DDP's reducer. How many were missed so, torch's flight recorder tells at the end,
which counts all.
"""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from traincope.record.collectives import Collectives, Unbox
from traincope.record.guard import guard
from traincope.record.operations import OPERATIONS, Operation, Output
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder
from traincope.record.torch_private import single_tensor_methods

METHODS = {
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "reduce": "reduce_",
    "broadcast": "broadcast_",
    "allgather": "allgather_",
    "all_gather_single": "_allgather_base_",
    "allgather_coalesced": "allgather_coalesced_",
    "allgather_into_tensor_coalesced": "allgather_into_tensor_coalesced_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "gather": "gather_",
    "scatter": "scatter_",
    "alltoall": "alltoall_",
    "alltoall_base": "alltoall_base_",
    "all_to_all_single": "alltoall_base_",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier_",
    "send": "send",
    "recv": "recv_",
    "recv_anysource": "recv_any_source_",
}
"""Method of `ProcessGroup`, of which no torch has all -> the operator that it ends in."""

IS_ON = (
    "on, in place of collectives: it sees what Python asks process groups for; not what C++ issues by itself "
    "(functional collectives, DTensor, DDP's buckets)"
)
NOT_NEEDED = "off: nothing to watch, the collectives probe sees all"

AS_IT_IS = Unbox(group=lambda group: group, work=lambda work: work)


class CollectivesFallback:
    """Hook on the methods of `ProcessGroup`, on only where `Collectives` is not."""

    name = "collectives_fallback"
    level = 1

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        if self._collectives.sees_all:
            recorder.probes[self.name] = NOT_NEEDED
            return
        self._collectives.prepare(recorder)
        self._recorder = recorder
        self._watch_methods()
        self._collectives.tally.begin()
        recorder.probes[self.name] = IS_ON

    def remove(self) -> None:
        """What somebody has patched over ours stays, and works: ours passes everything on."""
        if not self._patches:
            return
        self._patches.restore()
        self._collectives.forget_pending()
        guard(self._tell_what_was_missed)()

    def _watch_methods(self) -> None:
        from torch.distributed import ProcessGroup

        operations = {operation.op: operation for operation in OPERATIONS}
        for method, operator in (METHODS | single_tensor_methods()).items():
            original = vars(ProcessGroup).get(method)
            if original is not None:
                self._patches.replace(ProcessGroup, method, self._watched(operations[operator], original))

    def _watched(self, operation: Operation, original: Callable[..., Any]) -> Callable[..., Any]:
        begin, returned, raised = self._collectives.watched(operation, unbox=AS_IT_IS)
        read = guard(_reader(operation))

        @functools.wraps(original)
        def method(group: Any, /, *given: Any, **named: Any) -> Any:
            arguments = read(group, given, named)
            issued = None if arguments is None else begin(arguments)
            try:
                result = original(group, *given, **named)
            except BaseException:
                raised(issued)
                raise
            if arguments is not None and issued is not None:
                returned(issued, arguments, result)
            return result

        _name_frames(cast(FunctionType, method), original.__name__)
        return method

    def _tell_what_was_missed(self) -> None:
        told = "how many it missed is not known: torch's flight recorder counts none here, or counts otherwise"
        counts = self._collectives.tally.end()
        if counts is not None:
            seen, more = counts
            told = f"torch's flight recorder counted {more} more than the {seen} that it saw"
        self._recorder.probes[self.name] = f"{IS_ON}; {told}"


def _name_frames(method: FunctionType, name: str) -> None:
    """Call its frames as the method it stands for.

    A Python subclass of `ProcessGroup` looks up each method in Python, finds ours, and is told apart from a subclass'
    own only by the name of the frame that calls: pybind11's `get_type_override`. Else ours calls itself for ever.
    """
    method.__code__ = method.__code__.replace(co_name=name)


def _reader(operation: Operation) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]:
    """Puts what a method is given where its operator has it.

    Either tensors, then an object of options; or, in the short forms, one tensor, then plain values.
    """
    from torch import Tensor
    from torch.distributed import AllreduceOptions

    unless_told = getattr(AllreduceOptions(), "asyncOp", False)
    num_tensors = 0 if operation.name == "barrier" else operation.group
    tensor_stays = operation.fills is Output.TENSOR
    places = (operation.group, operation.peer, operation.tag, operation.async_op)
    size = 1 + max(place for place in places if place is not None)

    def read(group: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        if len(given) < num_tensors:
            raise TypeError(f"the tensors of {operation.name} are given by name")
        rest = (*given[num_tensors:], *named.values())
        arguments: list[Any] = [*given[:num_tensors], *[None] * (size - num_tensors)]
        if isinstance(arguments[0], Tensor) and not tensor_stays:
            arguments[0] = [arguments[0]]
        arguments[operation.group] = group
        if operation.peer is not None:
            arguments[operation.peer] = getattr(rest[0], "rootRank", rest[0]) if rest else 0
        if operation.tag is not None:
            arguments[operation.tag] = rest[-1]
        if operation.async_op is not None:
            told = [value.asyncOp for value in rest if hasattr(value, "asyncOp")]
            arguments[operation.async_op] = told[0] if told else unless_told
        return tuple(arguments)

    return read
