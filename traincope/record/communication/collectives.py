"""Hook on every collective of the process, at the `c10d` dispatcher operators that all of them pass.

`dist.*`, functional collectives, DDP's C++ reducer, FSDP2, DTensor and pipeline point-to-point all end in a `c10d::*`
operator. The recorder's kernel precedes it and calls the original exactly once. Errors pass through unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import Any, Protocol

from traincope.events import NO_PEER, Flag, Kind
from traincope.record.communication.groups import Groups
from traincope.record.communication.meshes import Meshes
from traincope.record.communication.missed_collectives import CallCounts, MissedCollectives
from traincope.record.communication.native import NativeKernels, native_kernels
from traincope.record.communication.operations import OPERATIONS, Operation, Output, element_flags
from traincope.record.communication.pending import Issued, Pending, is_fake
from traincope.record.instrumentation.dispatcher import Interposed, Kernel, transit_ns
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard, meter
from traincope.record.instrumentation.torch_private import async_position, sequence_number
from traincope.record.segments.slots import add_flag, end
from traincope.record.session.recorder import Recorder

COLLECTIVE = int(Kind.COLLECTIVE)
ASYNC, POINT_TO_POINT = int(Flag.ASYNC), int(Flag.POINT_TO_POINT)
"""Plain numbers: an enum's arithmetic costs a microsecond per call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbox:
    """Converters of a call's group, and of the work it returns, to the Python objects."""

    group: Callable[[Any], Any]
    work: Callable[[Any], Any]


CallHooks = tuple[
    Callable[[tuple[Any, ...]], Issued | None],
    Callable[[Issued | None, tuple[Any, ...], Any], None],
    Callable[[Issued | None], None],
]
"""Three hooks: before a collective, with the operator's arguments; after it, also with its result; after it raised."""


class DeviceListener(Protocol):
    """Observer of the streams of collectives with tensors on a GPU."""

    def began(self, issued: Issued) -> None: ...

    def returned(self, issued: Issued, *, on_current_stream: bool) -> None:
        """`on_current_stream`: the collective is queued on the current stream, so no wait for it is needed."""


class Collectives:
    """Hook on the `c10d` operators, for tensors on any device."""

    name = "collectives"
    level = 1

    def __init__(self, meshes: Meshes) -> None:
        self.pending = Pending()
        self._meshes = meshes
        self._groups: Groups | None = None
        self._interposed = Interposed("c10d")
        self._missed: MissedCollectives | None = None
        self._listeners: list[Callable[[Issued], None]] = []
        self.on_device: DeviceListener | None = None
        self.native: NativeKernels | None = None
        """The native kernels, if they record in place of those in Python."""
        self.sees_all = False
        """True if the recorder's kernels precede every operator."""

    def install(self, recorder: Recorder) -> None:
        self.prepare(recorder)
        self.native = native_kernels(recorder, self.groups)
        if self.native is None:
            for operation in OPERATIONS:
                self._interposed.put(operation.op, self._around(operation))
        kernels = self._interposed if self.native is None else self.native
        self._missed = MissedCollectives(recorder, kernels, self.call_counts, probe=self.name)
        self._missed.begin()
        recorder.at_blocks(self._prepare)
        self.sees_all = True

    def prepare(self, recorder: Recorder) -> None:
        """Prepare for `hooks_around`. Raises RuntimeError if this torch has no torch.distributed."""
        import torch

        if not torch.distributed.is_available():
            raise RuntimeError("this torch is built without torch.distributed")
        self._recorder = recorder
        self.call_counts = CallCounts()
        if self._groups is None:
            self._groups = Groups(recorder, self._meshes)

    @property
    def groups(self) -> Groups:
        """The groups of the whole run. A reinstalled hook continues their counts in the same window."""
        if self._groups is None:
            raise RuntimeError("collectives are not watched")
        return self._groups

    def remove(self) -> None:
        native = self.native
        if native is not None:
            native.count_calls(self.call_counts)
        if self._missed is not None:
            self._missed.finish()
        self._interposed.remove()
        if native is not None:
            native.remove()
        self.forget_pending()
        self.native = None
        self.sees_all = False

    def forget_pending(self) -> None:
        """Drop the pending collectives: waits are not observed any more."""
        forgotten = self.pending.clear() if self.native is None else self.native.end_waits()
        if forgotten:
            self._recorder.collectives_forgotten += forgotten

    def listen(self, listener: Callable[[Issued], None]) -> None:
        """Call `listener` with every collective of a DDP group, right after its call returned."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def claim_for_reducer(self, group: Any) -> None:
        """Note that DDP's reducer waits for the group's collectives, inside C++."""
        known = self.groups.claim(group, "dp")
        known.reducer = True
        if self.native is not None:
            self.native.tell(group, known)

    def hooks_around(self, operation: Operation, *, unbox: Unbox, extra_ns: int = 0) -> CallHooks:
        """Return the hooks around a call of one operator. `extra_ns`: the cost of reaching them."""
        return (
            guard(self._beginner(operation, unbox), every=SAMPLING_INTERVAL, extra_ns=extra_ns),
            guard(self._returner(operation, unbox), every=SAMPLING_INTERVAL),
            guard(self._raised),
        )

    def _around(self, operation: Operation) -> Callable[[Kernel, Any], Kernel]:
        from torch.distributed import ProcessGroup, Work

        operation = replace(operation, async_op=async_position(operation.op))
        unbox = Unbox(group=ProcessGroup.unbox, work=Work.unbox)
        recorder, count_call, transit = self._recorder, self.call_counts.counter(operation), transit_ns()
        begin, returned, raised = self.hooks_around(operation, unbox=unbox, extra_ns=transit)

        def around(proceed: Kernel, below: Any) -> Kernel:
            def collective(keys: Any, *arguments: Any) -> Any:
                if not recorder.detailed:
                    count_call()
                    meter.own_ns += transit
                    return proceed(keys & below, *arguments)
                issued = begin(arguments)
                try:
                    result = proceed(keys & below, *arguments)
                    returned(issued, arguments, result)
                    return result
                except BaseException:
                    raised(issued)
                    raise

            return collective

        return around

    def _prepare(self, detailed: bool) -> bool:
        """Hold no work between windows, and let calls pass without our kernels."""
        if self.native is not None:
            self.native.prepare(detailed)
            return True
        if detailed:
            return self._interposed.put_back()
        self.pending.release(self._recorder.writers)
        self._interposed.withdraw()
        return True

    def _beginner(self, operation: Operation, unboxing: Unbox) -> Callable[[tuple[Any, ...]], Issued | None]:
        """Build the hook that opens the record.

        A closure, so that the hot path looks up nothing that is known beforehand.
        """
        import torch

        recorder, find, num_bytes = self._recorder, self.groups.find, operation.num_bytes
        threads, shared, known_groups = recorder.threads, recorder.shared, self.groups.known
        count_call = self.call_counts.counter(operation)
        unbox = unboxing.group
        name = recorder.names.intern(operation.name)
        group_at, peer_at, tag_at, async_at = operation.group, operation.peer, operation.tag, operation.async_op
        may_be_on_device, plain_tensor, element_of = torch.backends.cuda.is_built(), torch.Tensor, element_flags().get

        def begin(arguments: tuple[Any, ...]) -> Issued | None:
            first_tensor = arguments[0]
            while type(first_tensor) is list and first_tensor:
                first_tensor = first_tensor[0]
            if type(first_tensor) is not plain_tensor and is_fake(first_tensor):
                return None
            count_call()
            group = unbox(arguments[group_at])
            known = known_groups.get(id(group))
            if known is None or known.attempts_left or known.reference() is not group:
                known = find(group)
            window = shared.window
            if known.window != window:
                known.begin_window(window)
            size_bytes = num_bytes(arguments)
            flags = element_of(getattr(first_tensor, "dtype", None), 0) if size_bytes else 0
            peer = NO_PEER if peer_at is None else int(arguments[peer_at])
            if tag_at is None:
                sequence = known.count
                tag = 0 if sequence else sequence_number(group)
                known.count = sequence + 1
                if async_at is not None and (len(arguments) <= async_at or arguments[async_at]):
                    flags |= ASYNC  # the operator's default, which the dispatcher omits
            else:
                peer, tag, flags = known.global_rank(peer), int(arguments[tag_at]), flags | POINT_TO_POINT
                sequence = known.next_sequence(operation.name, peer, tag)
            fields = (name, known.number, sequence, peer, tag, size_bytes, flags, window)
            slot = threads.writer.begin_collective(COLLECTIVE, fields)
            issued = Issued(slot, fields, known, may_be_on_device and operation.on_device(arguments))
            if issued.device and self.on_device is not None:
                self.on_device.began(issued)
            return issued

        return begin

    def _returner(self, operation: Operation, unboxing: Unbox) -> Callable[[Issued | None, tuple[Any, ...], Any], None]:
        """Build the hook that remembers the work for its wait, or closes the record of a blocking operator."""
        unbox, output = unboxing.work, operation.fills
        add_work, add_tensor, listeners = self.pending.add_work, self.pending.add_tensor, self._listeners
        threads, blocking = self._recorder.threads, operation.blocking
        fills_list, fills_tensor = output is Output.LIST, output is Output.TENSOR

        def returned(issued: Issued | None, arguments: tuple[Any, ...], result: Any) -> None:
            if issued is None:
                return
            if blocking:
                end(issued.slot)
                return
            work = unbox(result[-1] if type(result) is tuple else result)
            if issued.device and self.on_device is not None:
                self.on_device.returned(issued, on_current_stream=work is None)
            if work is None:
                end(issued.slot)
                return
            add_work(work, issued, threads.writer)
            if fills_list:
                for tensor in arguments[0]:
                    add_tensor(tensor, issued)
            elif fills_tensor:
                add_tensor(arguments[0], issued)
            if issued.known.reducer:
                issued.returned_ns = monotonic_ns()
                for listener in listeners:
                    listener(issued)

        return returned

    @staticmethod
    def _raised(issued: Issued | None) -> None:
        if issued is not None:
            end(issued.slot)
            add_flag(issued.slot, Flag.RAISED)
