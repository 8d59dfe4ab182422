"""Every collective of the process, seen where they all pass: the `c10d` dispatcher operators.

`dist.*`, functional collectives, DDP's C++ reducer, FSDP2, DTensor and pipeline point-to-point
all end in a `c10d::*` operator. Ours stands in front of it and calls the original exactly once, its
errors untouched.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import Any, Protocol

from traincope.events import NO_PEER, Flag, Kind
from traincope.record.dispatcher import Interposed, Kernel, transit_ns
from traincope.record.groups import Groups
from traincope.record.guard import SAMPLED, guard
from traincope.record.meshes import Meshes
from traincope.record.operations import OPERATIONS, Operation, Output
from traincope.record.pending import Issued, Pending, is_fake
from traincope.record.recorder import Recorder
from traincope.record.slots import add_flag, end
from traincope.record.tally import Tally
from traincope.record.torch_private import async_position
from traincope.record.unseen import Unseen

COLLECTIVE = int(Kind.COLLECTIVE)
ASYNC, POINT_TO_POINT = int(Flag.ASYNC), int(Flag.POINT_TO_POINT)
"""Plain numbers: an enum's arithmetic costs a microsecond a call."""


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
