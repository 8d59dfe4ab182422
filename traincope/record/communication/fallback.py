"""Hook on the methods of `ProcessGroup`, for a torch whose dispatcher operators cannot be observed.

`dist.*`, FSDP2, pipelines and batched sends all call a method of `ProcessGroup`, whatever name a script has imported
them under. Collectives that C++ issues by itself pass none of these: functional collectives, DTensor, DDP's reducer. At
the end, torch's flight recorder, which counts all collectives, gives the number of missed ones.
"""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from traincope.events import CARRY_NOTHING
from traincope.record.communication.collectives import Collectives, Unbox
from traincope.record.communication.operations import OPERATIONS, Operation, Output
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import single_tensor_methods
from traincope.record.session.recorder import Recorder

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
"""Method of `ProcessGroup` -> the operator that it ends in. No torch version has all methods."""

IS_ON = (
    "on, in place of collectives: records what Python issues, not what C++ issues by itself "
    "(functional collectives, DTensor, DDP's buckets)"
)
NOT_NEEDED = "off: nothing to watch, the collectives probe observes every call"

UNBOXED = Unbox(group=lambda group: group, work=lambda work: work)


class CollectivesFallback:
    """Hook on the methods of `ProcessGroup`. It is on only if `Collectives` is not."""

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
        self._collectives.call_counts.begin()
        recorder.probes[self.name] = IS_ON

    def remove(self) -> None:
        """Restore the methods. Another patch on top of ours stays and works: our method passes every call on."""
        if not self._patches:
            return
        self._patches.restore()
        self._collectives.forget_pending()
        guard(self._report_missed)()

    def _watch_methods(self) -> None:
        from torch.distributed import ProcessGroup

        operations = {operation.op: operation for operation in OPERATIONS}
        for method, operator in (METHODS | single_tensor_methods()).items():
            original = vars(ProcessGroup).get(method)
            if original is not None:
                self._patches.replace(ProcessGroup, method, self._watched(operations[operator], original))

    def _watched(self, operation: Operation, original: Callable[..., Any]) -> Callable[..., Any]:
        begin, returned, raised = self._collectives.hooks_around(operation, unbox=UNBOXED)
        read, recorder = guard(_reader(operation)), self._recorder

        @functools.wraps(original)
        def method(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            arguments = read(group, args, kwargs) if recorder.detailed else None
            issued = None if arguments is None else begin(arguments)
            try:
                result = original(group, *args, **kwargs)
            except BaseException:
                raised(issued)
                raise
            if arguments is not None and issued is not None:
                returned(issued, arguments, result)
            return result

        _name_frames(cast(FunctionType, method), original.__name__)
        return method

    def _report_missed(self) -> None:
        remark = "the number of missed ones is unknown: torch's flight recorder counts none here, or counts differently"
        counts = self._collectives.call_counts.end()
        if counts is not None:
            num_recorded, num_missed = counts
            remark = f"torch's flight recorder counted {num_missed} more than the {num_recorded} recorded"
        self._recorder.probes[self.name] = f"{IS_ON}; {remark}"


def _name_frames(method: FunctionType, name: str) -> None:
    """Give the method's frames the name of the method it replaces.

    A Python subclass of `ProcessGroup` looks up each method in Python and finds ours. pybind11's `get_type_override`
    distinguishes ours from the subclass's own method only by the name of the calling frame. Without the name, our
    method would call itself for ever.
    """
    method.__code__ = method.__code__.replace(co_name=name)


def _reader(operation: Operation) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]:
    """Build a function that arranges a method's arguments as its operator has them.

    A method takes either tensors and an object of options, or, in its short form, one tensor and plain values.
    """
    from torch import Tensor
    from torch.distributed import AllreduceOptions

    default = getattr(AllreduceOptions(), "asyncOp", False)
    num_tensors = 0 if operation.name in CARRY_NOTHING else operation.group
    tensor_stays = operation.fills is Output.TENSOR
    places = (operation.group, operation.peer, operation.tag, operation.async_op)
    size = 1 + max(place for place in places if place is not None)

    def read(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if len(args) < num_tensors:
            raise TypeError(f"{operation.name} got its tensors as keywords; pass them by position to record it")
        rest = (*args[num_tensors:], *kwargs.values())
        arguments: list[Any] = [*args[:num_tensors], *[None] * (size - num_tensors)]
        if isinstance(arguments[0], Tensor) and not tensor_stays:
            arguments[0] = [arguments[0]]
        arguments[operation.group] = group
        if operation.peer is not None:
            arguments[operation.peer] = getattr(rest[0], "rootRank", rest[0]) if rest else 0
        if operation.tag is not None:
            arguments[operation.tag] = rest[-1]
        if operation.async_op is not None:
            flags = [value.asyncOp for value in rest if hasattr(value, "asyncOp")]
            arguments[operation.async_op] = flags[0] if flags else default
        return tuple(arguments)

    return read
