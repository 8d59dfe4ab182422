"""Every collective of the process, seen where they all pass: the `c10d` dispatcher operators.

`dist.*`, functional collectives, DDP's C++ reducer, FSDP2, DTensor and pipeline point-to-point
all end in a `c10d::*` operator. Ours stands in front of it and calls the original exactly once, its
errors untouched.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from traincope.events import Flag, Kind
from traincope.record.dispatcher import Interposed, Kernel
from traincope.record.groups import Groups, KnownGroup
from traincope.record.guard import guard
from traincope.record.meshes import Meshes
from traincope.record.operations import OPERATIONS, Operation
from traincope.record.recorder import Recorder
from traincope.record.writer import Slot, add_flag, end

MAX_PENDING = 4_096
"""How many unfinished collectives are remembered; older ones that nobody waited for are forgotten."""


@dataclass(slots=True)
class Issued:
    """A collective under way: its open record, and what a stall for it repeats."""

    slot: Slot
    name: int
    group: int
    sequence: int
    peer: int
    tag: int
    num_bytes: int
    flags: int
    known: KnownGroup
    device: bool
    returned_ns: int = 0
    """When its call came back to the caller."""


class Pending:
    """Collectives not yet waited for, found by their work or by the tensor they fill.

    A work is remembered weakly: holding one would hold its tensors. Only the newest of a thread is
    held, until the caller has it.
    """

    def __init__(self) -> None:
        self._by_work: dict[int, tuple[weakref.ref[Any], Issued]] = {}
        self._by_tensor: dict[int, Issued] = {}
        self._newest = threading.local()

    def add_work(self, work: Any, issued: Issued) -> None:
        if len(self._by_work) >= MAX_PENDING:
            self._forget_dead()
        self._newest.work = work
        self._by_work[id(work)] = (weakref.ref(work), issued)

    def add_tensor(self, tensor: Any, issued: Issued) -> None:
        if len(self._by_tensor) >= MAX_PENDING:
            self._by_tensor.pop(next(iter(self._by_tensor)))
        self._by_tensor[tensor.data_ptr()] = issued

    def take_work(self, work: Any) -> Issued | None:
        entry = self._by_work.pop(id(work), None)
        return entry[1] if entry is not None and entry[0]() is work else None

    def take_tensor(self, tensor: Any) -> Issued | None:
        return self._by_tensor.pop(tensor.data_ptr(), None)

    def clear(self) -> None:
        self._by_work.clear()
        self._by_tensor.clear()
        self._newest = threading.local()

    def _forget_dead(self) -> None:
        alive = {key: entry for key, entry in self._by_work.items() if entry[0]() is not None}
        while len(alive) >= MAX_PENDING:
            alive.pop(next(iter(alive)))
        self._by_work = alive


class Collectives:
    """Hook on the `c10d` operators, whatever the device of their tensors."""

    name = "collectives"

    def __init__(self, meshes: Meshes) -> None:
        self.pending = Pending()
        self._meshes = meshes
        self._interposed = Interposed()
        self._listeners: list[Callable[[Issued], None]] = []

    def install(self, recorder: Recorder) -> None:
        import torch

        if not torch.distributed.is_available():
            raise RuntimeError("this torch is built without torch.distributed")
        self._recorder = recorder
        self.groups = Groups(recorder, self._meshes)
        for operation in OPERATIONS:
            self._interposed.put("c10d", operation.op, self._around(operation))

    def remove(self) -> None:
        self._interposed.remove()
        self.pending.clear()

    def listen(self, listener: Callable[[Issued], None]) -> None:
        """Call `listener` with every collective, right after its call returned."""
        self._listeners.append(listener)

    def _around(self, operation: Operation) -> Callable[[Kernel], Kernel]:
        begin = guard(self._begin)
        returned = guard(self._returned)
        raised = guard(self._raised)

        def around(proceed: Kernel) -> Kernel:
            def collective(keys: Any, *arguments: Any) -> Any:
                issued = begin(operation, arguments)
                try:
                    result = proceed(keys, *arguments)
                except BaseException:
                    raised(issued)
                    raise
                returned(issued, operation, arguments, result)
                return result

            return collective

        return around

    def _begin(self, operation: Operation, arguments: tuple[Any, ...]) -> Issued | None:
        recorder = self._recorder
        if not recorder.active:
            return None
        from torch.distributed import ProcessGroup

        known = self.groups.find(ProcessGroup.unbox(arguments[operation.group]))
        name = recorder.names.intern(operation.name)
        num_bytes = operation.num_bytes(arguments)
        peer, tag, flags = operation.peer_of(arguments), 0, 0
        if operation.tag is None:
            sequence = known.count
            known.count = sequence + 1
        else:
            peer, tag = self._peer_rank(known, peer), int(arguments[operation.tag])
            sequence = known.next_sequence(operation.name, peer, tag)
            flags = Flag.POINT_TO_POINT
        if operation.async_op is not None and len(arguments) > operation.async_op and arguments[operation.async_op]:
            flags |= Flag.ASYNC
        flags = int(flags)
        slot = recorder.writer().begin(Kind.COLLECTIVE, 0, name, known.number, sequence, peer, tag, num_bytes, flags)
        return Issued(
            slot, name, known.number, sequence, peer, tag, num_bytes, flags, known, operation.on_device(arguments)
        )

    def _returned(self, issued: Issued | None, operation: Operation, arguments: tuple[Any, ...], result: Any) -> None:
        if issued is None:
            return
        if operation.blocking:
            end(issued.slot)
            return
        from torch.distributed import Work

        boxed = result[-1] if isinstance(result, tuple) else result
        self.pending.add_work(Work.unbox(boxed), issued)
        if operation.functional_output is not None:
            for tensor in operation.functional_output(arguments):
                self.pending.add_tensor(tensor, issued)
        issued.returned_ns = monotonic_ns()
        for listener in self._listeners:
            listener(issued)

    @staticmethod
    def _raised(issued: Issued | None) -> None:
        if issued is not None:
            end(issued.slot)
            add_flag(issued.slot, Flag.RAISED)

    @staticmethod
    def _peer_rank(known: KnownGroup, peer: int) -> int:
        """Global rank of a peer given by its rank in the group."""
        return known.ranks[peer] if 0 <= peer < len(known.ranks) else peer
