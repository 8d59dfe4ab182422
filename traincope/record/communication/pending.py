"""Pending collectives: issued, and not yet waited for."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from traincope.events import OPEN
from traincope.record.communication.groups import KnownGroup
from traincope.record.segments.slots import Slot, end_bounded, is_open
from traincope.record.segments.writer import CollectiveFields, ThreadWriter

MAX_PENDING = 512
"""Maximum number of unfinished collectives to remember.

Each keeps the segment of its record mapped. Older ones without a wait are dropped and counted.
"""
FLAGS = 6
"""Index of the flags among the fields."""


class Issued:
    """A collective under way."""

    __slots__ = ("address", "batch", "before", "device", "fields", "forgotten", "known", "returned_ns", "slot")

    def __init__(self, slot: Slot, fields: CollectiveFields, known: KnownGroup, device: bool) -> None:
        self.slot = slot
        self.fields = fields
        self.known = known
        self.device = device
        """True if its tensors are on a GPU. Then a wait stops the stream, not the host."""
        self.batch: tuple[Issued, ...] = ()
        """The messages after it in its batch, if the batch has one work, in order of issue."""
        self.address = 0
        """Address of the (last) tensor it fills, if a tensor may be waited for; otherwise 0."""
        self.before: Any = None
        """The event before it on the compute stream, during its call."""
        self.returned_ns = 0
        """The time when its call returned, if DDP's reducer waits for it; otherwise 0."""
        self.forgotten = False
        """True if it was dropped, so that a wait for it may not be recognised."""


def is_fake(tensors: Any) -> bool:
    """Return whether nothing is really sent: torch.compile and FakeTensorMode call operators to learn shapes."""
    while isinstance(tensors, (list, tuple)) and tensors:
        tensors = tensors[0]
    return type(tensors).__name__ == "FakeTensor"


class _WorkReference(weakref.ref[Any]):
    """Weak reference to a work: a strong one would keep its tensors alive.

    Its data are attributes, which saves a closure per work.
    """

    __slots__ = ("issued", "key")

    key: int
    issued: Issued


class Pending:
    """Collectives not yet waited for, by their work or by the tensor they fill.

    Only the newest work of a thread is held, until the thread issues another. If the work is complete by then, its
    record is closed. That is the only visible end of a work that C++ waits for, or that is never waited for.
    """

    def __init__(self) -> None:
        self.by_work: dict[int, _WorkReference] = {}
        self.by_tensor: dict[int, Issued] = {}
        """Both dictionaries stay the same objects. Between windows they are empty, which a wait sees at once."""
        self._num_forgotten = 0
        self._on_work_gone: Callable[[_WorkReference], None] = self._drop_work

    def add_work(self, work: Any, issued: Issued, writer: ThreadWriter) -> None:
        """Add a work. `writer` is the calling thread's; it holds the thread's newest work."""
        by_work = self.by_work
        while len(by_work) >= MAX_PENDING:
            oldest = by_work.pop(next(iter(by_work)), None)
            self._forget(None if oldest is None else oldest.issued)
        if writer.latest is not None:
            self._close_complete(*writer.latest)
        writer.latest = (work, issued)
        reference = _WorkReference(work, self._on_work_gone)
        key = id(work)
        reference.key, reference.issued = key, issued
        by_work[key] = reference

    def add_tensor(self, tensor: Any, issued: Issued) -> None:
        if len(self.by_tensor) >= MAX_PENDING:
            self._forget(self.by_tensor.pop(next(iter(self.by_tensor)), None))
        issued.address = tensor.data_ptr()
        self.by_tensor[issued.address] = issued

    def take_work(self, work: Any) -> Issued | None:
        """Take a work that is about to be waited for. If it is complete already, its record ends here."""
        reference = self.by_work.pop(id(work), None)
        is_the_same = reference is not None and reference() is work
        if reference is None or not is_the_same:
            return None
        issued = reference.issued
        if issued.address:
            self.by_tensor.pop(issued.address, None)
        words, at = issued.slot
        if words[at] == OPEN and not issued.device and work.is_completed():
            end_bounded(issued.slot)
        return issued

    def take_tensor(self, tensor: Any) -> Issued | None:
        return None if is_fake(tensor) else self.by_tensor.pop(tensor.data_ptr(), None)

    def release(self, writers: Iterable[ThreadWriter]) -> None:
        """Hold the newest works of these threads no longer: no later collective will take their place."""
        for writer in writers:
            latest, writer.latest = writer.latest, None
            if latest is not None:
                self._close_complete(*latest)

    def clear(self) -> int:
        """Drop all. Returns the number that had been dropped before because there were too many."""
        self.by_work.clear()
        self.by_tensor.clear()
        forgotten, self._num_forgotten = self._num_forgotten, 0
        return forgotten

    def _close_complete(self, work: Any, issued: Issued) -> None:
        if not issued.device and work.is_completed():
            if is_open(issued.slot):
                end_bounded(issued.slot)
            self.by_work.pop(id(work), None)
            self.by_tensor.pop(issued.address, None)

    def _drop_work(self, reference: _WorkReference) -> None:
        """Release the segment of its record: the work was never waited for, and never will be."""
        if self.by_work.get(reference.key) is reference:
            del self.by_work[reference.key]

    def _forget(self, issued: Issued | None) -> None:
        """Count a dropped collective. None: another thread, or the end of a work, was quicker."""
        if issued is not None and not issued.forgotten:
            issued.forgotten = True
            self._num_forgotten += 1
