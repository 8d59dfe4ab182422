"""Boundaries of training steps.

`run.step()` decides. Without it the first optimizer that steps is the anchor, until another replaces it: after the
anchor's step, the next data fetch or root forward begins the next training step. A script without a DataLoader and
without modules shows neither: there the end of the anchor's step begins the next one.

If no optimizer is seen to step (torch.compile has compiled its step, or it is not a torch optimizer), zeroing the
gradients after a backward marks the step. So does, without any torch optimizer, a change of the weights in place or the
loss of their gradients. Without fetches and modules, such steps begin with a backward. If these signs may also come
from within a step, the step is marked as one whose borders are unknown.

If none of these is seen, the steps are unknown. Then whole backward calls count as steps, from the seventeenth on, and
are marked as such. If a torch optimizer exists, it may accumulate gradients; then backward calls count only after more
than any training accumulates.
"""

import gc
import sys
from collections import deque
from math import inf
from time import monotonic_ns
from typing import NamedTuple
from weakref import ref

from traincope.events import BLOCK_STEPS, NO_STEP, Flag, Kind
from traincope.record.instrumentation.guard import guard, meter
from traincope.record.instrumentation.weight_versions import Update, WeightVersions
from traincope.record.segments.slots import Slot, add_flag, end_step
from traincope.record.segments.writer import Shared, ThreadWriter

NO_OPTIMIZER_AFTER = 16
"""Backward calls without a step, after which to search for an optimizer."""
MAX_ACCUMULATION = 1024
"""Maximum number of backward calls that an optimizer may accumulate before its first step."""
GUESSED, PARTIAL = int(Flag.GUESSED), int(Flag.PARTIAL)
"""Plain numbers: an enum's arithmetic costs a microsecond per call."""
DECISIVE_STEPS = 2
"""Number of steps that decide: this many to recognise a companion, and this many without the anchor to replace it."""


class StepAnchor:
    """The anchor of a training: the first optimizer that steps, until another replaces it.

    An optimizer that begins later replaces the anchor at once if the anchor is gone, as usual after its training has
    ended. Otherwise it replaces the anchor after steps of its own during which the anchor took none. A critic that
    steps more often, but did so from the beginning, replaces nothing. No optimizer is kept alive by this.
    """

    __slots__ = ("_companions", "_newcomer", "_newcomer_steps", "_owner", "_steps")

    def __init__(self) -> None:
        self._owner: ref[object] | None = None
        self._steps = 0
        self._companions: dict[int, ref[object]] = {}
        """Optimizers that stepped before the anchor's second step, by identity: an optimizer need not be hashable."""
        self._newcomer: ref[object] | None = None
        self._newcomer_steps = 0
        """Steps of the newcomer since the anchor's last step."""

    def ends_step(self, owner: object) -> bool:
        """Note that `owner` has stepped. Returns whether this ends the training step."""
        anchor = None if self._owner is None else self._owner()
        if owner is anchor:
            self._steps += 1
            self._newcomer = None
            return True
        if anchor is None or self._replaced_by(owner):
            self._owner, self._newcomer, self._steps = ref(owner), None, 1
            self._companions.clear()
            return True
        return False

    def _replaced_by(self, owner: object) -> bool:
        if self._steps < DECISIVE_STEPS:
            self._companions[id(owner)] = ref(owner)
        companion = self._companions.get(id(owner))
        if companion is not None and companion() is owner:
            return False
        if self._newcomer is None:
            self._newcomer, self._newcomer_steps = ref(owner), 0
        self._newcomer_steps += self._newcomer() is owner
        return self._newcomer_steps >= DECISIVE_STEPS


class StepCost(NamedTuple):
    """Cost of recording one step."""

    own_ns: int
    native_ns: int
    """Part of `own_ns` in native code."""
    wall_ns: int


class Steps:
    """The steps of one process. Its records go to the training thread's writer."""

    def __init__(self, writer: ThreadWriter, shared: Shared) -> None:
        self._writer = writer
        self._shared = shared
        self._next = 0
        self._state = 0
        """Steps that the training's state has had, without the open one."""
        self._slot: Slot | None = None
        self._began_ns = self._own_ns_before = 0
        """The recorder's time and the clock at the start of the open step."""
        self._explicit = False
        self._trained = False
        """True if a backward or an optimizer ran in the open step."""
        self.has_trained = False
        """True if a backward ever ran. An optimizer may step before, to create its state."""
        self._has_updated = False
        self.detail = 0
        """Flags of further steps of this block, which say whether they are recorded in detail."""
        self.latest: StepCost | None = None
        """Cost of the last ended step. None before the first."""
        self.not_judged: deque[StepCost] = deque(maxlen=BLOCK_STEPS)
        """Costs of the ended steps that the sampling has not taken yet."""
        self._lengths_ns: deque[int] = deque(maxlen=BLOCK_STEPS)
        self._anchor = StepAnchor()
        self._anchor_stepped = self._any_stepped = False
        self._work_shown = False
        """True if data was fetched or a root module ran since the last sign of a step's end."""
        self.ends_with_update = False
        """True if the anchor has stepped, and nothing has shown where its step's work began."""
        self._optimizer_begun = False
        """True if an optimizer was ever seen to step. Then the weaker signs of a step are ignored."""
        self._zeroing_anchor = StepAnchor()
        """The anchor among owners of gradients: the first whose gradients were zeroed after a backward."""
        self._backwards = 0
        """Backward calls since the last sign of an optimizer, while none has been seen to step."""
        self._backwards_per_step = NO_OPTIMIZER_AFTER
        """The number of backward calls from which each counts as a step."""
        self._weights = WeightVersions()
        self._update_seen = False
        """True if an optimizer, zeroed gradients, changed weights or a gradient scaler ever showed an update."""
        self._longest_shown = 0
        """Most backward calls of a step whose update the weights showed for certain. 0: they never did."""
        self._by_backward = False
        """True if the open step is over only by the number of backward calls, or by signs that leave a doubt."""
        self._holds_optimizer: bool | None = None
        """True if this process holds a torch optimizer. None before the search."""
        self._in_schedule = self._schedule_trained = False
        """True while a pipeline schedule runs; true once it has begun a backward."""

    @property
    def has_updated(self) -> bool:
        """Return whether weights were updated after a backward, as far as it is seen."""
        return self._has_updated or self._update_seen

    def continue_on(self, writer: ThreadWriter, *, work_shown: bool) -> None:
        """Write further steps with the writer of another thread. `work_shown`: it has fetched data or run a module."""
        self._writer, self._work_shown = writer, work_shown

    def mark(self) -> None:
        """Mark a boundary (`run.step()`). The first mark is ignored before any training."""
        first_mark = not self._explicit
        self._explicit = True
        if first_mark and self._slot is not None and not self._trained:
            return
        self._close()
        self._open()

    def before_work(self) -> bool:
        """Note that a batch is about to be fetched or a root module to run. Returns whether a step began."""
        if self._backwards:
            self._look_at_weights()
        self._work_shown = True
        return (self._slot is None or self._anchor_stepped) and self._begin(if_over=self._anchor_stepped)

    def before_backward(self, outputs: object = ()) -> bool:
        """Note that a backward from `outputs` is about to run. Returns whether a step began.

        It begins one only if nothing else has shown the begin.
        """
        if self._backwards:
            self._look_at_weights()
        is_over = self._anchor_stepped and not (self._work_shown or self._optimizer_begun)
        began = (self._slot is None or is_over) and self._begin(if_over=is_over)
        if not self._optimizer_begun and self._backwards == 0:
            self._weights.note(outputs)
        return began

    def backward_ended(self) -> None:
        """Note that a backward is over."""
        if not self._optimizer_begun:
            self._weights.note_gradients()

    def _look_at_weights(self) -> None:
        """Note an update without an optimizer, if the weights show one since their last backward.

        A compiled step of an optimizer may change them in parts, with work in between: its zeroed gradients decide.
        """
        if self._optimizer_begun or not self._backwards:
            return
        update = self._weights.find_update()
        if update is Update.NONE or self._has_optimizer():
            return
        self._end_work(by_backward=update is Update.LIKELY)
        if update is Update.CERTAIN:
            self._longest_shown = max(self._longest_shown, self._backwards)
            self._backwards_per_step = min(max(self._backwards_per_step, 2 * self._backwards), MAX_ACCUMULATION)
        self._backwards = 0

    def update_ended(self) -> bool:
        """Note that an optimizer's step is over, with all that belongs to it. Returns whether the next step began.

        An optimizer may step before the training, to create the state that a checkpoint fills.
        """
        is_over, self.ends_with_update = self.ends_with_update, False
        return is_over and self._slot is not None and self._begin(if_over=True)

    def _begin(self, *, if_over: bool) -> bool:
        """Begin a step if none is open, or if the open one is over by the signs. Returns whether one began."""
        if self._slot is None or (if_over and not self._explicit):
            self._close(flag=GUESSED)
            self._open()
            return True
        return False

    def backward_began(self) -> None:
        """Note that a backward began. After many without a sign of an optimizer, each counts as a step."""
        self._trained = self.has_trained = True
        self._schedule_trained = self._in_schedule
        if not self._optimizer_begun and not self._in_schedule:
            self._backwards += 1
            if self._backwards >= self._backwards_per_step and not self._may_accumulate():
                self._end_work(by_backward=True)

    def _end_work(self, *, by_backward: bool = False) -> None:
        """Note a sign that the open step's work is done: the next sign of work begins the next step."""
        self._anchor_stepped, self._work_shown = True, False
        self._by_backward = by_backward
        self._update_seen = self._update_seen or not by_backward

    def _may_accumulate(self) -> bool:
        """Return whether more backward calls may follow before a step."""
        if self._has_optimizer():
            self._backwards_per_step = MAX_ACCUMULATION
        return self._backwards < self._backwards_per_step

    def _has_optimizer(self) -> bool:
        """Return whether this process holds a torch optimizer. Searches only once: the search costs milliseconds."""
        if self._holds_optimizer is None:
            self._holds_optimizer = bool(has_live_optimizer())
        return self._holds_optimizer

    def schedule_begins(self) -> None:
        """Begin a pipeline schedule: its backward calls, one per microbatch and stage, count as one."""
        self._in_schedule, self._schedule_trained = True, False

    def schedule_ended(self) -> None:
        self._in_schedule = False
        if self._schedule_trained:
            self.backward_began()

    @property
    def awaits_zeroing(self) -> bool:
        """Return whether zeroing gradients may mark a step: no optimizer was seen to step."""
        return not self._optimizer_begun and self._backwards > 0

    def gradients_zeroed(self, owner: object) -> None:
        """Note that an optimizer or module has zeroed its gradients: their work is done."""
        if not self.awaits_zeroing:
            return
        self._backwards_per_step = MAX_ACCUMULATION
        if self._zeroing_anchor.ends_step(owner):
            self._end_work()
            self._backwards = 0

    def optimizer_steps(self) -> None:
        """Note that an optimizer begins to step. It may call backward itself, as LBFGS does."""
        self._optimizer_begun, self._backwards = True, 0

    def optimizer_stepped(self, optimizer: object) -> None:
        """Note that the optimizer has stepped."""
        self._trained = self._any_stepped = True
        self._has_updated = self._has_updated or self.has_trained
        if self._anchor.ends_step(optimizer):
            self.ends_with_update = not self._work_shown
            self._end_work()

    def scaler_updated(self) -> None:
        """Note that a gradient scaler was updated. If no optimizer has stepped in this step, none will."""
        if self._slot is not None and self._trained and not self._anchor_stepped and not self._any_stepped:
            add_flag(self._slot, Flag.SKIPPED)
            self._end_work()
            self._backwards = 0

    def skipped(self) -> None:
        """Note that the training leaves out the update of the open step."""
        if self._slot is not None:
            add_flag(self._slot, Flag.SKIPPED)

    def debugged(self) -> None:
        """Note that a `DebugTool` is on in the open step."""
        if self._slot is not None:
            add_flag(self._slot, Flag.DEBUGGED)

    def resumed(self, step: int) -> None:
        """Note that the training continues from a saved state of `step` steps.

        Before its first optimizer, all work prepared for it.
        """
        if not self._optimizer_begun:
            self._close(flag=PARTIAL)
            self._backwards = 0
            self._state = step

    def rolled_back(self, step: int) -> tuple[int, int] | None:
        """Note that the training went back to a state of `step` steps. If the open step has trained, it is undone too.

        Returns the number of undone steps, and the last of them; None if the state had not had so many.
        """
        in_step = self._slot is not None and self._trained
        undone = self._state + in_step - step
        if undone <= 0:
            return None
        self._state = step - in_step
        return undone, self._next - 1 - (self._slot is not None and not self._trained)

    def under_way(self) -> tuple[int, int, float]:
        """Return number and age in ns of the open step, and the median length of the latest ones: any thread may ask.

        The age is 0 if no step is open, and the length infinite if too few have ended.
        """
        age_ns = 0 if self._slot is None else monotonic_ns() - self._began_ns
        lengths_ns = sorted(self._lengths_ns.copy())
        usual_ns = lengths_ns[len(lengths_ns) // 2] if len(lengths_ns) == BLOCK_STEPS else inf
        return self._next - 1, age_ns, usual_ns

    @property
    def num_ended(self) -> int:
        """Return the number of steps that have ended, the open one not included."""
        return self._next - (self._slot is not None)

    def is_detailed(self, *, requested: bool) -> None:
        """Note that the open step is recorded in detail. `requested`: only because of a request."""
        if self._slot is not None:
            add_flag(self._slot, detail_flags(requested=requested))

    def finish(self) -> None:
        """End the run cleanly. An open step that has trained nothing is marked PARTIAL."""
        if not self._trained:
            self._close(flag=PARTIAL)
            return
        self._look_at_weights()
        self._by_backward = self._by_backward or self._ends_in_doubt()
        self._close(flag=0 if self._explicit else GUESSED)

    def end_training(self) -> None:
        """End the open step, if its work is done: no further step may follow. Explicit steps end explicitly."""
        self._look_at_weights()
        if self._anchor_stepped and not self._explicit:
            self.finish()

    def _ends_in_doubt(self) -> bool:
        """Return whether the run ends in backward calls that may be several steps, or part of one.

        A training that has returned may have freed its weights before they could show its last update.
        """
        if self._optimizer_begun:
            return False
        if self._longest_shown:
            return self._backwards > (0 if self._weights.are_alive else self._longest_shown)
        return self._backwards > 1 and not self._update_seen

    def _open(self) -> None:
        self._shared.set_step(self._next)
        self._next += 1
        self._own_ns_before, self._began_ns = meter.own_ns, monotonic_ns()
        self._slot = self._writer.begin(Kind.STEP)
        if self.detail and self._shared.step % BLOCK_STEPS:  # where a block begins, its detail is not decided yet
            add_flag(self._slot, self.detail)
        self._trained = self._anchor_stepped = self._any_stepped = self._by_backward = False

    def _close(self, *, flag: int = 0) -> None:
        if self._slot is None:
            return
        if self._by_backward and flag & GUESSED:
            flag |= Flag.BY_BACKWARD
        native_ns = self._shared.take_native_ns()
        meter.own_ns += native_ns
        own_ns, now = meter.own_ns - self._own_ns_before, monotonic_ns()
        end_step(self._slot, now, own_ns=own_ns, flag=flag)
        self._slot = None
        self._shared.set_step(NO_STEP)
        if not flag & PARTIAL:
            self._state += 1
            self._lengths_ns.append(now - self._began_ns)
            self.latest = StepCost(own_ns, native_ns, now - self._began_ns)
            self.not_judged.append(self.latest)


def detail_flags(*, requested: bool) -> int:
    """Flags of a step with detail. `requested`: only because of a request."""
    return Flag.DETAILED | Flag.REQUESTED if requested else Flag.DETAILED


@guard
def has_live_optimizer() -> bool:
    """Return whether this process holds a torch optimizer.

    Only the type of each object is examined: a lazy object may execute anything when its class is read. Each type is
    examined once, which saves a third of the 80 ms that a million objects cost.
    """
    torch_optim = sys.modules.get("torch.optim")
    if torch_optim is None:
        return False
    optimizer = torch_optim.Optimizer
    return any(issubclass(kind, optimizer) for kind in set(map(type, gc.get_objects())))
