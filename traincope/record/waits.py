"""Stall brackets: the time the computing thread stood still for a collective.

Covers `Work.wait` (dist.*, FSDP2, point to point) and the `_c10d_functional::wait_tensor` operator
(functional collectives, DTensor). DDP waits inside C++; `ddp.py` sees that.
"""

import warnings
from time import monotonic_ns
from typing import Any

from traincope.events import Flag, Kind
from traincope.record.collectives import Issued, Pending
from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder
from traincope.record.writer import Slot, add_flag, end_at

WAIT_TENSOR = "_c10d_functional::wait_tensor"


class Waits:
    """Hook on everything that waits for a collective on the host."""

    name = "waits"

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._patches = Patches()
        self._library: Any = None

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patch_work()
        self._cover_wait_tensor()

    def remove(self) -> None:
        self._patches.restore()
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _patch_work(self) -> None:
        from torch.distributed import Work

        original = vars(Work)["wait"]
        begin, finish = guard(self._begin_work), guard(self._finish)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            stall = begin(work)
            try:
                return original(work, *args, **kwargs)
            finally:
                if stall is not None:
                    finish(stall)

        self._patches.replace(Work, "wait", wait)

    def _cover_wait_tensor(self) -> None:
        from torch.library import Library, get_kernel

        kernel = get_kernel(WAIT_TENSOR, "CPU")
        begin, finish = guard(self._begin_tensor), guard(self._finish)

        def wait_tensor(keyset: Any, tensor: Any) -> Any:
            stall = begin(tensor)
            try:
                return kernel.call_boxed(keyset, tensor)
            finally:
                if stall is not None:
                    finish(stall)

        self._library = Library("_c10d_functional", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(overrid|Overrid)")
            self._library.impl("wait_tensor", wait_tensor, "CPU", with_keyset=True, allow_override=True)

    def _begin_work(self, work: Any) -> tuple[Slot, Issued] | None:
        if not self._recorder.active:
            return None
        issued = self._pending.take_work(work)
        if issued is None:
            return None
        if work.is_completed():
            add_flag(issued.slot, Flag.DONE_BEFORE_WAIT)
        return self._begin(issued)

    def _begin_tensor(self, tensor: Any) -> tuple[Slot, Issued] | None:
        if not self._recorder.active:
            return None
        issued = self._pending.take_tensor(tensor)
        return None if issued is None else self._begin(issued)

    def _begin(self, issued: Issued) -> tuple[Slot, Issued]:
        slot = self._recorder.writer().begin(
            Kind.STALL,
            0,
            issued.name,
            issued.group,
            issued.sequence,
            issued.peer,
            issued.tag,
            issued.num_bytes,
            issued.flags,
        )
        return slot, issued

    @staticmethod
    def _finish(stall: tuple[Slot, Issued]) -> None:
        now = monotonic_ns()
        slot, issued = stall
        end_at(slot, now)
        end_at(issued.slot, now)
