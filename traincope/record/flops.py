"""The FLOPs this rank executes, counted with no configuration in a few steps of the run.

In a counted step ours stands in front of torch's matrix products (`products.py`), below autograd
and DTensor: it sees local shapes, on whichever thread a product runs, and changes no dispatch. In
all other steps the products are torch's alone; only the wrappers of modules and backward calls stay,
for taking them off would make torch.compile compile again what it compiled meanwhile. What a
compiled graph or a CUDA graph runs cannot be seen so: then nothing is counted, and the probe's state
says why.

Taking a kernel away is a race in torch: a thread that calls the operator meanwhile may read half of what its table
says, and raise or crash (tried: actor threads beside a training died of it within seconds). So nothing is counted
while another thread lives that calls modules; where one began to in a counted step, ours stay, and pass everything on.
"""

import functools
import threading
from collections import Counter
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from traincope.events import Kind, Phase, Work
from traincope.record.dispatcher import KEY, Interposed, Kernel
from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.phases import NO_GRAPH_TASK, Phases
from traincope.record.products import FORMULAS, dtype_name, implied_flops, is_dense, is_imaginary
from traincope.record.recorder import Recorder
from traincope.record.torch_private import compiled_graphs, graph_task_reader, keys_below

FIRST = 1
"""The first counted step; step 0 warms up, and a pipeline may run its model once more there."""
SELDOM = 32
"""From here on the powers of two, and every `AT_LEAST`-th: shapes may change, and 20 steps must feel one at most."""
AT_LEAST = 512

CREATE_GRAPH_AT = {"backward": 3, "grad": 4}
"""Function of `torch.autograd` -> place of its argument `create_graph`, where it is given without its name."""

REMEDY = "tell run.describe(model_flops_per_step=...)"
COMPILED = f"off: what torch.compile compiled cannot be counted; {REMEDY}"
CAPTURED = f"off: a CUDA graph's replays cannot be counted; {REMEDY}"
SHARED = f"off: another thread of the training multiplies, too, and must not be disturbed; {REMEDY}"
SPARSE = f"off: products of sparse tensors take as many FLOPs as those have elements; {REMEDY}"
UNKNOWN = f"off: attention over packed documents has FLOPs that only the device knows; {REMEDY}"


def is_due(step: int) -> bool:
    """Whether a step is counted: few, and the more seldom the longer the run."""
    return step == FIRST or (step >= SELDOM and step & (step - 1) == 0) or (step > 0 and step % AT_LEAST == 0)


Tally = Counter[tuple[Phase, Work, Any]]
"""FLOPs by what they were for, what they were, and the dtype."""


class _Here(threading.local):
    within = False
    """Inside a counted product: what it calls is part of it."""
    products = 0
    modules = 0
    evaluating = False
    """Inside the call of a root module that is not being trained."""
    repeating = False
    """Inside the call of a module that backward runs again."""
    tally: Tally | None = None


class Flops:
    """Hook on `aten`'s matrix products, in counted steps only."""

    name = "flops"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._interposed = Interposed()
        self._patches = Patches()
        self._here = _Here()
        self._counting: int | None = None
        """The step being counted."""
        self._tallies: list[Tally] = []
        """One for each thread: backward may run on several."""
        self._unseen: str | None = None
        """Why the step's counts are worth nothing."""
        self._second_order = 0
        """Backward calls under way whose gradients will be differentiated: they have gradients on, too."""
        self._recorder: Recorder | None = None
        self._on = False

    def install(self, recorder: Recorder) -> None:
        import torch

        keys_below(KEY)  # a torch without the way below our kernels is found out here, not in every counted step
        self._graph_task, self._grad_enabled = graph_task_reader(), torch.is_grad_enabled
        self._on = True
        self._patch_modules()
        self._patch_backward()
        self._patch_graphs()
        self._recorder = recorder
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        """A step that is not over is not counted."""
        self._on = False
        self._stop()
        self._patches.restore()

    # -- from step to step --------------------------------------------------------------------

    def _between_steps(self) -> None:
        counted = self._counting
        if counted is not None:
            self._unseen = self._unseen or self._reason_not_to()
            self._stop()
            self._write(counted)
        if self._on and self._unseen is None and is_due(self._recorder_there.shared.step):
            self._unseen = self._reason_not_to()
            if self._unseen is None:
                self._start()
        if self._unseen is not None:
            self._stop()
            self._tell(self._unseen)

    @property
    def _recorder_there(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder

    def _reason_not_to(self) -> str | None:
        if self._phases.others_call_modules():
            return SHARED
        return COMPILED if compiled_graphs() else None

    def _tell(self, state: str) -> None:
        """For the report; a training may stop compiling, so the next step that is due is tried again."""
        recorder, self._unseen = self._recorder_there, None
        if recorder.probes.get(self.name) != state:
            recorder.probes[self.name] = state
            recorder.note()

    def _start(self) -> None:
        self._counting = self._recorder_there.shared.step
        self._here, self._tallies = _Here(), []
        self._interposed.remove()  # of a step in which they could not be taken away
        for operator in FORMULAS:
            guard(self._put)(operator)

    def _stop(self) -> None:
        self._counting = None
        if not self._phases.others_call_modules():
            self._interposed.remove()

    def _write(self, step: int) -> None:
        """One record for each phase, kind of work and dtype, at the step's end."""
        if self._unseen is not None:
            return
        flops: Counter[tuple[Phase, Work, str]] = Counter()
        for tally in self._tallies:
            for (phase, work, dtype), count in tally.items():
                flops[phase, work, dtype_name(dtype)] += count
        recorder, now = self._recorder_there, monotonic_ns()
        for (phase, work, name), count in flops.items():
            number = recorder.names.intern(name)
            recorder.main.write(Kind.FLOPS, now, now, phase, number, tag=work, value=count, step=step)
        self._tell("on")

    def _count(self, phase: Phase, work: Work, dtype: Any, flops: int) -> None:
        here = self._here
        if here.tally is None:
            here.tally = Counter()
            self._tallies.append(here.tally)
        here.tally[phase, work, dtype] += flops

    # -- products -----------------------------------------------------------------------------

    def _put(self, operator: str) -> None:
        """Stand in front of an operator; one that this torch lacks needs no counting."""
        import torch

        name, _, overload = operator.partition(".")
        found = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if found is None:
            return
        names = [argument.name for argument in found._schema.arguments]
        try:
            self._interposed.put("aten", operator, functools.partial(self._around, operator, names))
        except RuntimeError as error:
            self._unseen = f"off: {error}; {REMEDY}"

    def _around(self, operator: str, names: list[str], proceed: Kernel, below: Any) -> Kernel:
        here, recorder, see = self._here, self._recorder_there, guard(self._see)

        def product(keys: Any, *arguments: Any, **named: Any) -> Any:
            if here.within or self._counting is None or not recorder.active:
                return proceed(keys & below, *arguments, **named)
            see(operator, names, arguments, named)
            here.within = True
            try:
                return proceed(keys & below, *arguments, **named)
            finally:
                here.within = False

        return product

    def _see(self, operator: str, names: list[str], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        phase = self._phase()
        if phase is None or is_imaginary(arguments[0]):
            return
        call = {**dict(zip(names, arguments, strict=False)), **named}
        if not is_dense(call):
            self._unseen = SPARSE
            return
        dtype, parts = FORMULAS[operator](call)
        if not parts:
            self._unseen = UNKNOWN
        self._here.products += 1
        for work, flops in parts:
            self._count(phase, work, dtype, flops)

    def _phase(self) -> Phase | None:
        """What the calling thread multiplies for; None: nothing of the training (an optimizer, an evaluation)."""
        if self._graph_task() != NO_GRAPH_TASK:
            return Phase.RECOMPUTE if self._here.repeating or self._is_repeated() else Phase.BACKWARD
        if self._here.modules:
            return None if self._here.evaluating else Phase.FORWARD
        return Phase.FORWARD if self._grad_enabled() else None

    def _is_repeated(self) -> bool:
        """Whether what backward runs is a forward.

        Inside an `autograd.Function` or a custom operator gradients are off: of what those do the module around them
        tells.
        """
        return self._grad_enabled() and not self._second_order

    # -- modules and backward calls ------------------------------------------------------------

    def _patch_modules(self) -> None:
        from torch.compiler import is_compiling
        from torch.nn import Module

        original, enter, leave = Module.__call__, guard(self._enter), guard(self._leave)

        @functools.wraps(original)
        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # In this order: torch.compile would guard what it asks before it knows that it compiles.
            if is_compiling() or self._counting is None:
                return original(module, *args, **kwargs)
            here = self._here
            repeating, products = here.repeating, enter(module)
            here.modules += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                here.modules -= 1
                leave(module, products, args)
                here.repeating = repeating

        self._patches.replace(Module, "__call__", __call__)

    def _enter(self, module: Any) -> int:
        here = self._here
        if not here.modules:
            here.evaluating = not (self._grad_enabled() or module.training)
        here.repeating = here.repeating or (self._graph_task() != NO_GRAPH_TASK and self._is_repeated())
        return here.products

    def _leave(self, module: Any, products: int | None, args: tuple[Any, ...]) -> None:
        """What a module's own matrices imply for the tokens it was given."""
        if self._phase() is not Phase.FORWARD or products is None or not args:
            return
        implied = implied_flops(module, args[0])
        if implied:
            self._count(Phase.FORWARD, Work.IMPLIED, None, implied)
            self._count(Phase.FORWARD, Work.COVERED, None, implied if self._here.products > products else 0)

    def _patch_backward(self) -> None:
        from torch import autograd

        for name, place in CREATE_GRAPH_AT.items():
            self._patches.replace(autograd, name, self._noting_order(getattr(autograd, name), place))

    def _noting_order(self, original: Callable[..., Any], place: int) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            again = bool(args[place] if len(args) > place else kwargs.get("create_graph"))
            self._second_order += again
            try:
                return original(*args, **kwargs)
            finally:
                self._second_order -= again

        return backward

    def _patch_graphs(self) -> None:
        """What is captured does not run, and what is replayed passes no operator."""
        from torch.cuda import CUDAGraph

        for name in ("capture_begin", "replay"):
            self._patches.replace(CUDAGraph, name, self._noting_graphs(getattr(CUDAGraph, name)))

    def _noting_graphs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def graph(*args: Any, **kwargs: Any) -> Any:
            if self._counting is not None:
                self._unseen = CAPTURED
            return original(*args, **kwargs)

        return graph
