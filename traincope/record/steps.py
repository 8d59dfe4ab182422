"""Where one training step ends and the next begins.

`run.step()` decides. Without it the first optimizer that steps is the anchor: once it has stepped,
the next data fetch or root forward begins the next step. Where nothing of torch's optimizers steps, whole backward
calls count, from the seventeenth on.
"""

from time import monotonic_ns

from traincope.events import NO_STEP, Flag, Kind
from traincope.record.guard import meter
from traincope.record.writer import Shared, Slot, ThreadWriter, add_flag, end_at, set_value

NO_OPTIMIZER_AFTER = 16
"""Backward calls without an optimizer after which there will be none: no usual accumulation is that long."""


class Steps:
    """The steps of one process; its records go to the training thread's writer."""

    def __init__(self, writer: ThreadWriter, shared: Shared) -> None:
        self._writer = writer
        self._shared = shared
        self._next = 0
        self._slot: Slot | None = None
        self._began_ns = self._own_ns = 0
        """What the recorder had spent when the open step began."""
        self._explicit = False
        self._trained = False
        """Whether a backward or an optimizer ran in the open step."""
        self.latest: tuple[int, int] | None = None
        """Own ns and wall ns of the step that ended last; None before there is one."""
        self._anchor: int | None = None
        self._anchor_stepped = self._any_stepped = False
        self._backwards = 0
        """Backward calls since the last optimizer step, to tell a training that has none of torch's."""
        self._in_schedule = self._schedule_trained = False
        """Whether a pipeline schedule runs, and has begun a backward."""

    def mark(self) -> None:
        """`run.step()`: a boundary, unless all that happened so far was the first batch's loading."""
        first_mark = not self._explicit
        self._explicit = True
        if first_mark and self._slot is not None and not self._trained:
            return
        self._close()
        self._open()

    def before_work(self) -> bool:
        """A batch is about to be fetched, or a root module to run; returns whether a step began."""
        if self._slot is None:
            self._open()
            return True
        if self._anchor_stepped and not self._explicit:
            self._close(flag=Flag.GUESSED)
            self._open()
            return True
        return False

    def trained(self) -> None:
        """A backward began. After many without any optimizer of torch's, each counts as a step."""
        self._trained = True
        self._schedule_trained = self._in_schedule
        if self._anchor is None and not self._in_schedule:
            self._backwards += 1
            self._anchor_stepped = self._backwards >= NO_OPTIMIZER_AFTER

    def schedule_begins(self) -> None:
        """A pipeline schedule's many backwards, one a microbatch and stage, are the one of its batch."""
        self._in_schedule, self._schedule_trained = True, False

    def schedule_ended(self) -> None:
        self._in_schedule = False
        if self._schedule_trained:
            self.trained()

    def stepped(self, optimizer: int) -> None:
        """The optimizer of that identity has stepped."""
        if self._anchor is None:
            self._anchor = optimizer
        self._trained = self._any_stepped = True
        if optimizer == self._anchor:
            self._anchor_stepped = True

    def skipped(self) -> None:
        """A gradient scaler was updated: where no optimizer has stepped in this step, none will."""
        if self._slot is not None and self._trained and not self._anchor_stepped and not self._any_stepped:
            add_flag(self._slot, Flag.SKIPPED)
            self._anchor_stepped = True

    def finish(self) -> None:
        """The run ends cleanly: what was begun without training anything was no step."""
        if not self._trained:
            self._close(flag=Flag.PARTIAL)
        else:
            self._close(flag=0 if self._explicit else Flag.GUESSED)

    def _open(self) -> None:
        self._shared.step = self._next
        self._next += 1
        self._own_ns, self._began_ns = meter.own_ns, monotonic_ns()
        self._slot = self._writer.begin(Kind.STEP)
        self._trained = self._anchor_stepped = self._any_stepped = False

    def _close(self, *, flag: int = 0) -> None:
        if self._slot is None:
            return
        own_ns = meter.own_ns - self._own_ns
        set_value(self._slot, own_ns)
        now = monotonic_ns()
        end_at(self._slot, now)
        self.latest = (own_ns, now - self._began_ns)
        if flag:
            add_flag(self._slot, flag)
        self._slot = None
        self._shared.step = NO_STEP
