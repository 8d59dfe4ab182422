"""Hook on waits: the time the computing thread, or the compute stream, stalls for a collective.

Covers `Work.wait` (dist.*, FSDP2, point to point) and the `_c10d_functional::wait_tensor` operator (functional
collectives, DTensor). DDP waits inside C++, which `ddp.py` covers.
"""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from traincope.events import OPEN, Flag, Kind
from traincope.native.library import NO_STALL
from traincope.record.communication.collectives import Collectives
from traincope.record.communication.native import NativeKernels
from traincope.record.communication.pending import Issued
from traincope.record.compute.phases import Phases
from traincope.record.gpu.device import CudaDevice, DeviceMarks, Event
from traincope.record.instrumentation.dispatcher import Interposed, Kernel, transit_ns
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.segments.slots import Slot, add_flag, end
from traincope.record.session.recorder import Recorder

STALL = int(Kind.STALL)

Stall = tuple[Slot, Issued, Event | None]
"""An open stall on the host, its collective, and the event before it on the compute stream."""


class Waits:
    """Hook on every wait for a collective on the host."""

    name = "waits"
    level = 1

    def __init__(self, collectives: Collectives, phases: Phases) -> None:
        self._collectives = collectives
        self._pending = collectives.pending
        self._phases = phases
        self._patches = Patches()
        self._interposed = Interposed("_c10d_functional")
        self.device: DeviceMarks | None = None
        """Marks on the compute stream. None if torch cannot use a GPU."""

    def install(self, recorder: Recorder) -> None:
        import torch

        self._recorder = recorder
        if torch.backends.cuda.is_built():
            self.device = DeviceMarks(recorder, CudaDevice())
            recorder.between_steps(self._between_steps)
        self._native = self._collectives.native
        self._patch_work()
        if self._native is not None:
            return
        recorder.at_blocks(self._prepare)
        try:
            self._interposed.put("wait_tensor", self._around_wait_tensor)
        except (AttributeError, RuntimeError) as error:
            recorder.probes[self.name] = f"on, but not for functional collectives: {type(error).__name__}: {error}"

    def remove(self) -> None:
        self._patches.restore()
        self._interposed.remove()
        if self.device is not None:
            self.device.stop()
            self.device = self._phases.device = None

    def _prepare(self, detailed: bool) -> bool:
        """Let waits between windows pass without our kernel, once what was issued inside has been waited for."""
        if detailed:
            return self._interposed.put_back()
        if not self._pending.by_tensor:
            self._interposed.withdraw()
        return True

    def _between_steps(self) -> None:
        """Mark phases too in the windows that begin after the device is in use."""
        if self.device is not None:
            self._phases.device = self.device if self.device.between_steps() else None

    def _patch_work(self) -> None:
        from torch.distributed import Work

        for kind in (Work, *Work.__subclasses__()):
            if "wait" in vars(kind):
                waited = self._waited if self._native is None else _waited_natively(self._native)
                self._patches.replace(kind, "wait", waited(vars(kind)["wait"]))

    def _waited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begin = guard(self._beginner(self._pending.take_work), every=SAMPLING_INTERVAL)
        finish = guard(self._finish, every=SAMPLING_INTERVAL)
        raised = guard(self._raised)

        pending = self._pending.by_work

        def wait(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not pending:
                return original(work, *args, **kwargs)
            stall = begin(work)
            try:
                result = original(work, *args, **kwargs)
                if stall is not None:
                    finish(stall)
                return result
            except BaseException:
                raised(stall)
                raise

        return wait

    def _around_wait_tensor(self, proceed: Kernel, below: Any) -> Kernel:
        begin = guard(self._beginner(self._pending.take_tensor), every=SAMPLING_INTERVAL, extra_ns=transit_ns())
        finish = guard(self._finish, every=SAMPLING_INTERVAL)
        raised = guard(self._raised)

        pending = self._pending.by_tensor

        def wait_tensor(keys: Any, tensor: Any) -> Any:
            if not pending:
                return proceed(keys & below, tensor)
            stall = begin(tensor)
            try:
                result = proceed(keys & below, tensor)
                if stall is not None:
                    finish(stall)
                return result
            except BaseException:
                raised(stall)
                raise

        return wait_tensor

    def _beginner(self, take: Callable[[Any], Issued | None]) -> Callable[[Any], Stall | None]:
        """Build the hook that opens the stall.

        `take` finds the collective by the awaited object. A closure for the hot path.
        """
        threads = self._recorder.threads

        def begin(awaited: Any) -> Stall | None:
            issued = take(awaited)
            if issued is None:
                return None
            try:
                before = self.device.mark() if issued.device and self.device is not None else None
                writer = threads.writer
                latest = writer.latest
                if latest is not None and latest[1] is issued:
                    writer.latest = None  # the caller holds the work now; holding it longer would hold its tensors
                return writer.begin_collective(STALL, issued.fields), issued, before
            except BaseException:  # of the training: its wait does not begin
                end(issued.slot)
                add_flag(issued.slot, Flag.RAISED)
                raise

        return begin

    def _finish(self, stall: Stall) -> None:
        now = monotonic_ns()
        (words, at), issued, before = stall
        words[at] = now
        words, at = issued.slot
        if words[at] == OPEN:
            words[at] = now
        if before is not None and self.device is not None:
            self.device.close(before, issued)

    def _raised(self, stall: Stall | None) -> None:
        """Close a stall whose collective failed: the wait is not a transfer."""
        if stall is not None:
            self._finish(stall)
            add_flag(stall[0], Flag.RAISED)
            add_flag(stall[1].slot, Flag.RAISED)


def _waited_natively(native: NativeKernels) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the hook on waits for collectives of the native kernels, which also precede `wait_tensor`."""
    begin, end, raised = native.begin_wait, native.end_wait, native.end_raised
    begin_with_room = guard(native.begin_stall)

    def waited(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            stall = begin(work)
            if stall == NO_STALL:
                return original(work, *args, **kwargs)
            if stall < 0:
                begun = begin_with_room(stall)
                if begun is None or begun < 0:
                    return original(work, *args, **kwargs)
                stall = begun
            try:
                result = original(work, *args, **kwargs)
            except BaseException:
                raised(stall)
                raise
            end(stall)
            return result

        return wait

    return waited
