"""Where one training step ends and the next begins.

`run.step()` decides. Without it the first optimizer that steps is the anchor, until another takes its place: once it
has stepped, the next data fetch or root forward begins the next step. Where none is seen to step, for torch.compile
has compiled its step, or it is none of torch's, gradients that are zeroed after a backward say that it has. Where they
are not zeroed either, whole backward calls count, from the seventeenth on; where an optimizer of torch's lives that
may be accumulating, only after as many as nobody accumulates.
"""

import gc
import sys
from time import monotonic_ns

from traincope.events import NO_STEP, Flag, Kind
from traincope.record.anchor import Anchor
from traincope.record.guard import guard, meter
from traincope.record.slots import Slot, add_flag, end_at, set_value
from traincope.record.writer import Shared, ThreadWriter

NO_OPTIMIZER_AFTER = 16
"""Backward calls without a step after which it is asked whether there is an optimizer at all."""
LONGEST_ACCUMULATION = 1024
"""Backward calls that an optimizer may accumulate before its first step."""


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
        self._anchor = Anchor()
        self._anchor_stepped = self._any_stepped = False
        self._optimizer_begun = False
        """Whether one was ever seen to begin a step: then what else might tell of it is not listened to."""
        self._zeroed = Anchor()
        """Whose gradients tell of steps: the first that were zeroed after a backward."""
        self._backwards = 0
        """Backward calls since the last word of an optimizer, while none has been seen to step."""
        self._patience = NO_OPTIMIZER_AFTER
        """So many of them, and each counts as a step."""
        self._looked = False
        """Whether it is known if there is an optimizer of torch's."""
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
        """A backward began. After many without any word of an optimizer, each counts as a step."""
        self._trained = True
        self._schedule_trained = self._in_schedule
        if not self._optimizer_begun and not self._in_schedule:
            self._backwards += 1
            if self._backwards >= self._patience and not self._may_accumulate():
                self._anchor_stepped = True

    def _may_accumulate(self) -> bool:
        """Whether more of its backwards are to be waited for; asked once, for the answer costs milliseconds."""
        if not self._looked and optimizer_lives():
            self._patience = LONGEST_ACCUMULATION
        self._looked = True
        return self._backwards < self._patience

    def schedule_begins(self) -> None:
        """A pipeline schedule's many backwards, one a microbatch and stage, are the one of its batch."""
        self._in_schedule, self._schedule_trained = True, False

    def schedule_ended(self) -> None:
        self._in_schedule = False
        if self._schedule_trained:
            self.trained()

    def zeroed(self, owner: object) -> None:
        """The gradients of that optimizer or module were set to zero: what they were for has been done."""
        if self._optimizer_begun or not self._backwards:
            return
        self._patience = LONGEST_ACCUMULATION
        if self._zeroed.takes(owner):
            self._anchor_stepped, self._backwards = True, 0

    def stepping(self) -> None:
        """An optimizer begins to step, and may call backward itself, as LBFGS does."""
        self._optimizer_begun = True

    def stepped(self, optimizer: object) -> None:
        """It has stepped."""
        self._trained = self._any_stepped = True
        if self._anchor.takes(optimizer):
            self._anchor_stepped = True

    def skipped(self) -> None:
        """A gradient scaler was updated: where no optimizer has stepped in this step, none will."""
        if self._slot is not None and self._trained and not self._anchor_stepped and not self._any_stepped:
            add_flag(self._slot, Flag.SKIPPED)
            self._anchor_stepped, self._backwards = True, 0

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


@guard
def optimizer_lives() -> bool:
    """Whether this process holds an optimizer of torch's.

    Of all objects only the type is looked at: a lazy one may do anything when it is asked for its class. And each
    type once, which takes a third off the 80 ms that a million objects cost.
    """
    torch_optim = sys.modules.get("torch.optim")
    if torch_optim is None:
        return False
    optimizer = torch_optim.Optimizer
    return any(issubclass(kind, optimizer) for kind in set(map(type, gc.get_objects())))
