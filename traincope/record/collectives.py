"""Every collective of the process, seen where they all pass: the `c10d` dispatcher operators.

`dist.*`, functional collectives, DDP's C++ reducer, FSDP2, DTensor and pipeline point-to-point
all end in a `c10d::*` operator. Ours stands in front of it and calls the original exactly once, its
errors untouched.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import Any, Protocol

from traincope.events import NO_PEER, Flag, Kind
from traincope.record.dispatcher import Interposed, Kernel, transit_ns
from traincope.record.groups import Groups, KnownGroup
from traincope.record.guard import SAMPLED, guard
from traincope.record.meshes import Meshes
from traincope.record.operations import OPERATIONS, Operation, Output
from traincope.record.recorder import Recorder
from traincope.record.tally import Tally
from traincope.record.torch_private import async_position
from traincope.record.unseen import Unseen
from traincope.record.writer import Slot, ThreadWriter, add_flag, end, end_bounded, is_open

COLLECTIVE = int(Kind.COLLECTIVE)
ASYNC, POINT_TO_POINT = int(Flag.ASYNC), int(Flag.POINT_TO_POINT)
"""Plain numbers: an enum's arithmetic costs a microsecond a call."""
MAX_PENDING = 512
"""How many unfinished collectives are remembered; older ones that nobody waited for are forgotten, and counted, for
each keeps the segment of its record mapped."""


Fields = tuple[int, int, int, int, int, int, int]
"""name, group, sequence, peer, tag, bytes, flags: what a collective's record and its stall's share."""


class Issued:
    """A collective under way."""

    __slots__ = ("address", "before", "device", "fields", "forgotten", "known", "returned_ns", "slot")

    def __init__(self, slot: Slot, fields: Fields, known: KnownGroup, device: bool) -> None:
        self.slot = slot
        self.fields = fields
        self.known = known
        self.device = device
        """Whether its tensors are on a GPU: then waiting stops the stream, not the host."""
        self.address = 0
        """Of the (last) tensor it fills, where a tensor may be waited for; else 0."""
        self.before: Any = None
        """The event before it on the compute stream, while its call lasts."""
        self.returned_ns = 0
        """When its call came back, where DDP's reducer waits for it; else 0."""
        self.forgotten = False
        """Whether a wait for it may not be known as its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbox:
    """How a call's group, and the work it returns, become what Python knows them by."""

    group: Callable[[Any], Any]
    work: Callable[[Any], Any]


Watched = tuple[
    Callable[[tuple[Any, ...]], Issued | None],
    Callable[[Issued | None, tuple[Any, ...], Any], None],
    Callable[[Issued | None], None],
]
"""What is called before a collective, with its operator's arguments; after it, with its result too; and where it
raised."""


class OnDevice(Protocol):
    """Who looks at the streams of collectives with tensors on a GPU."""

    def began(self, issued: Issued) -> None: ...

    def returned(self, issued: Issued, *, on_current_stream: bool) -> None:
        """`on_current_stream`: it is queued there, and nobody needs to wait for it."""


def is_fake(tensors: Any) -> bool:
    """Whether nothing is really sent: torch.compile and FakeTensorMode call operators to learn shapes."""
    while isinstance(tensors, (list, tuple)) and tensors:
        tensors = tensors[0]
    return type(tensors).__name__ == "FakeTensor"


class Pending:
    """Collectives not yet waited for, found by their work or by the tensor they fill.

    A work is remembered weakly: holding one would hold its tensors. Only the newest of a thread is
    held, until the thread issues another; was it complete by then, its record is closed, which is
    the only end seen of a work that C++ waits for, or nobody.
    """

    def __init__(self) -> None:
        self._by_work: dict[int, tuple[weakref.ref[Any], Issued]] = {}
        self._by_tensor: dict[int, Issued] = {}
        self._num_forgotten = 0

    def add_work(self, work: Any, issued: Issued, writer: ThreadWriter) -> None:
        """`writer` is the calling thread's; it holds the thread's newest work."""
        while len(self._by_work) >= MAX_PENDING:
            self._forget(self._by_work.pop(next(iter(self._by_work)), (None, None))[1])
        if writer.latest is not None:
            older, before = writer.latest
            if not before.device and older.is_completed():
                if is_open(before.slot):
                    end_bounded(before.slot)
                self._by_work.pop(id(older), None)
                self._by_tensor.pop(before.address, None)
        writer.latest = (work, issued)
        key, by_work = id(work), self._by_work

        def gone(reference: Any) -> None:
            """Nobody waited for it and nobody will: let go of the segment its record lies in."""
            entry = by_work.get(key)
            if entry is not None and entry[0] is reference:
                del by_work[key]

        by_work[key] = (weakref.ref(work, gone), issued)

    def add_tensor(self, tensor: Any, issued: Issued) -> None:
        if len(self._by_tensor) >= MAX_PENDING:
            self._forget(self._by_tensor.pop(next(iter(self._by_tensor)), None))
        issued.address = tensor.data_ptr()
        self._by_tensor[issued.address] = issued

    def take_work(self, work: Any) -> Issued | None:
        """What is about to be waited for; found complete, its record ends here."""
        entry = self._by_work.pop(id(work), None)
        if entry is None:
            return None
        reference, issued = entry
        is_the_same = reference() is work
        if not is_the_same:
            return None
        self._by_tensor.pop(issued.address, None)
        if not issued.device and work.is_completed() and is_open(issued.slot):
            end_bounded(issued.slot)
        return issued

    def take_tensor(self, tensor: Any) -> Issued | None:
        return None if is_fake(tensor) else self._by_tensor.pop(tensor.data_ptr(), None)

    def clear(self) -> int:
        """How many had been forgotten before, for want of room."""
        self._by_work.clear()
        self._by_tensor.clear()
        forgotten, self._num_forgotten = self._num_forgotten, 0
        return forgotten

    def _forget(self, issued: Issued | None) -> None:
        """None: another thread, or the end of a work, was quicker."""
        if issued is not None and not issued.forgotten:
            issued.forgotten = True
            self._num_forgotten += 1


class Collectives:
    """Hook on the `c10d` operators, whatever the device of their tensors."""

    name = "collectives"
    level = 1

    def __init__(self, meshes: Meshes) -> None:
        self.pending = Pending()
        self._meshes = meshes
        self._groups: Groups | None = None
        self._interposed = Interposed()
        self._unseen: Unseen | None = None
        self._listeners: list[Callable[[Issued], None]] = []
        self.on_device: OnDevice | None = None
        self.sees_all = False
        """Whether our kernels stand in front of every operator."""

    def install(self, recorder: Recorder) -> None:
        self.prepare(recorder)
        for operation in OPERATIONS:
            self._interposed.put("c10d", operation.op, self._around(operation))
        self._unseen = Unseen(recorder, self._interposed, self.tally, probe=self.name)
        self._unseen.begin()
        self.sees_all = True

    def prepare(self, recorder: Recorder) -> None:
        """What `watched` needs, wherever it is called from. Raises RuntimeError where there is nothing to watch."""
        import torch

        if not torch.distributed.is_available():
            raise RuntimeError("this torch is built without torch.distributed")
        self._recorder = recorder
        self.tally = Tally()
        if self._groups is None:
            self._groups = Groups(recorder, self._meshes)

    @property
    def groups(self) -> Groups:
        """Those of the whole run: a hook that comes back goes on counting, or a number would be used twice."""
        if self._groups is None:
            raise RuntimeError("collectives are not watched")
        return self._groups

    def count_anew(self, step: int) -> None:
        """All ranks do, at the beginning of that step: some have counted on, while others were not watching."""
        if self._groups is not None:
            self._groups.count_anew(step)

    def remove(self) -> None:
        if self._unseen is not None:
            self._unseen.finish()
        self._interposed.remove()
        self.forget_pending()
        self.sees_all = False

    def forget_pending(self) -> None:
        """Nobody looks at waits any more."""
        forgotten = self.pending.clear()
        if forgotten:
            self._recorder.collectives_forgotten += forgotten

    def listen(self, listener: Callable[[Issued], None]) -> None:
        """Call `listener` with every collective of a DDP group, right after its call returned."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def watched(self, operation: Operation, *, unbox: Unbox, around_ns: int = 0) -> Watched:
        """The hooks around a call of one operator; `around_ns`: what the way to them costs."""
        return (
            guard(self._beginner(operation, unbox), every=SAMPLED, around_ns=around_ns),
            guard(self._returner(operation, unbox), every=SAMPLED),
            guard(self._raised),
        )

    def _around(self, operation: Operation) -> Callable[[Kernel, Any], Kernel]:
        from torch.distributed import ProcessGroup, Work

        operation = replace(operation, async_op=async_position(operation.op))
        unbox = Unbox(group=ProcessGroup.unbox, work=Work.unbox)
        begin, returned, raised = self.watched(operation, unbox=unbox, around_ns=transit_ns())

        def around(proceed: Kernel, below: Any) -> Kernel:
            def collective(keys: Any, *arguments: Any) -> Any:
                issued = begin(arguments)
                try:
                    result = proceed(keys & below, *arguments)
                except BaseException:
                    raised(issued)
                    raise
                returned(issued, arguments, result)
                return result

            return collective

        return around

    def _beginner(self, operation: Operation, boxes: Unbox) -> Callable[[tuple[Any, ...]], Issued | None]:
        """Opens the record. A closure, so that the hot path looks up nothing it can know beforehand."""
        import torch

        recorder, find, num_bytes = self._recorder, self.groups.find, operation.num_bytes
        threads, known_groups = recorder.threads, self.groups.known
        seen = self.tally.counter(operation)
        unbox = boxes.group
        name = recorder.names.intern(operation.name)
        group_at, peer_at, tag_at, async_at = operation.group, operation.peer, operation.tag, operation.async_op
        may_be_on_device, plain_tensor = torch.backends.cuda.is_built(), torch.Tensor

        def begin(arguments: tuple[Any, ...]) -> Issued | None:
            if not recorder.active:
                return None
            first = arguments[0][0] if type(arguments[0]) is list and arguments[0] else arguments[0]
            if type(first) is not plain_tensor and is_fake(first):
                return None
            seen()
            group = unbox(arguments[group_at])
            known = known_groups.get(id(group))
            if known is None or known.looks_left or known.reference() is not group:
                known = find(group)
            peer = NO_PEER if peer_at is None else int(arguments[peer_at])
            if tag_at is None:
                tag, sequence, flags = 0, known.count, 0
                known.count = sequence + 1
                if async_at is not None and (len(arguments) <= async_at or arguments[async_at]):
                    flags = ASYNC  # the operator's default, which the dispatcher leaves out
            else:
                peer, tag, flags = known.global_rank(peer), int(arguments[tag_at]), POINT_TO_POINT
                sequence = known.next_sequence(operation.name, peer, tag)
            fields = (name, known.number, sequence, peer, tag, num_bytes(arguments), flags)
            slot = threads.writer.begin(COLLECTIVE, 0, *fields)
            issued = Issued(slot, fields, known, may_be_on_device and operation.on_device(arguments))
            if issued.device and self.on_device is not None:
                self.on_device.began(issued)
            return issued

        return begin

    def _returner(self, operation: Operation, boxes: Unbox) -> Callable[[Issued | None, tuple[Any, ...], Any], None]:
        """Remembers the work to be waited for, or closes the record of an operator that blocks."""
        unbox, output = boxes.work, operation.fills
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
