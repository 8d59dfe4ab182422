"""Hook that counts the FLOPs this rank executes, without configuration, in a few steps of the run.

In a counted step our kernels precede torch's matrix products (`flop_formulas.py`), below autograd and DTensor. They see
local shapes, on whichever thread a product runs, and change no dispatch. In all other steps the products are torch's
alone. Only the wrappers of modules (in `phases.py`) and of backward calls stay: removing them would make torch.compile
compile everything again.

Products of compiled code are counted in the graphs that torch.compile captured (`compiled_graphs.py`), whichever
kernels run. Those of other compilers, and of the training's own CUDA graphs, are not visible. Then nothing is counted,
and the probe's state names the reason.

Removing a kernel is a race in torch: a thread that calls it at that time may read half of the operator's table,
and raise or crash (in trials, actor threads next to a training died of it within seconds). Therefore nothing is counted
while another live thread calls modules. If one begins to in a counted step, our kernels stay and pass every call on.
"""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

from traincope.events import Kind, Phase, Work
from traincope.record.compute.causal_masks import HALVED, SOFTMAXES, CausalMasks, Square, is_capturing, square_of
from traincope.record.compute.compiled_graphs import (
    COMPILED_BACKWARD,
    CapturedGraph,
    CapturedGraphs,
    GraphCost,
    backward_node,
    is_of_torch,
    multiplying_node,
)
from traincope.record.compute.flop_formulas import (
    FLASH_ATTN,
    FORMULAS,
    LIBRARY_FORMULAS,
    dtype_name,
    implied_flops,
    is_dense,
    is_shape_only,
    linear_flops,
)
from traincope.record.compute.phases import NO_GRAPH_TASK, Phases
from traincope.record.instrumentation.dispatcher import KEY, Interposed, Kernel
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import (
    autograd_engine,
    graph_task_reader,
    has_compiled_autograd,
    hide_from_compiler,
    keys_below,
    running_node,
    without_functions,
    without_modes,
)
from traincope.record.session.recorder import Recorder

FIRST_COUNTED_STEP = 1
"""The first counted step. Step 0 warms up, and a pipeline may run its model once more there."""
POWERS_OF_TWO_FROM = 32
"""From this step on, count the powers of two and every `MAX_INTERVAL`-th step.

Shapes may change. Of 20 steps at most one may be slowed."""
MAX_INTERVAL = 512

MAX_DEPTH = 64
"""Modules around a product. Our kernels run on top of them, and must not be what reaches Python's recursion limit."""

CREATE_GRAPH_AT = 3
"""Position of the argument `create_graph` of autograd's engine."""

ON = "on"
BY_GRAPHS = f"{ON}, compiled code by the graphs that torch.compile captured"
REMEDY = "call run.describe(model_flops_per_step=...)"
COMPILED = f"off: FLOPs in compiled code cannot be counted{{}}; {REMEDY}"
HIDDEN = COMPILED.format(": its graphs were not seen")
CAPTURED = f"off: a CUDA graph's replays cannot be counted; {REMEDY}"
OTHER_THREADS = f"off: another thread of the training also multiplies, and counting could disturb it; {REMEDY}"
SPARSE = f"off: the FLOPs of a product of sparse tensors depend on their elements; {REMEDY}"
DEEP = f"off: modules are nested more than {MAX_DEPTH} deep, and counting needs a part of Python's stack; {REMEDY}"
PACKED = f"off: the FLOPs of attention over packed documents, or in windows, are not known from its shapes; {REMEDY}"


def is_due(step: int) -> bool:
    """Return whether a step is counted: few are, and fewer the longer the run."""
    return (
        step == FIRST_COUNTED_STEP
        or (step >= POWERS_OF_TWO_FROM and step & (step - 1) == 0)
        or (step > 0 and step % MAX_INTERVAL == 0)
    )


FlopCounts = Counter[tuple[Phase, Work, Any, Square | None]]
"""FLOPs by phase, kind of work, dtype, and shape of the attention that they may belong to."""


class _ThreadState(threading.local):
    inside_product = False
    """Inside a counted product, whose inner calls are part of it."""
    products = 0
    modules = 0
    evaluating = False
    """Inside the call of a root module that is not being trained."""
    recomputing = False
    """Inside the call of a module that backward runs again."""
    counts: FlopCounts | None = None


Entered = tuple[_ThreadState, bool, int]
"""The calling thread's state when a module was called: whether a module around it recomputes, and its products."""


class Flops:
    """Hook on `aten`'s matrix products, in counted steps only."""

    name = "flops"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._interposed, self._library = Interposed("aten"), Interposed(FLASH_ATTN)
        self._graphs = CapturedGraphs(self._set_apart)
        self._patches = Patches()
        self._thread = _ThreadState()
        self._counting: int | None = None
        """The step being counted."""
        self._unwritten: int | None = None
        """The step that was counted, until it is known which attention in it is causal."""
        self._masks = CausalMasks()
        self._counts_by_thread: list[FlopCounts] = []
        """One counter per thread: backward may run on several."""
        self._uncountable: str | None = None
        """The reason why the step's counts are invalid."""
        self._state = ON
        self._second_order = 0
        """Number of running backward calls that create a graph. They also run with gradients enabled."""
        self._recorder: Recorder | None = None
        self._on = False

    def install(self, recorder: Recorder) -> None:
        import torch

        keys_below(KEY)  # fails here, not in every counted step, if this torch lacks the dispatch below our kernels
        self._graph_task, self._grad_enabled = graph_task_reader(), torch.is_grad_enabled
        self._is_tracing = torch.jit.is_tracing  # type: ignore[attr-defined]  # not in __all__
        self._on = True
        self._decide = guard(self._start_or_stop)
        self._enter, self._leave = guard(self._enter_module), guard(self._leave_module)
        self.begins = self._enter
        self._begin_graph, self._end_graph = guard(self._graph_begins), guard(self._graph_ended)
        hide_from_compiler(self.ended, calls_too=True)
        hide_from_compiler(self._enter, calls_too=True)  # the code of every guard
        self._graphs.install(recorder)
        self._patch_backward()
        self._patch_graphs()
        self._recorder = recorder
        recorder.between_detailed_steps(self._between_steps)

    def remove(self) -> None:
        """Stop counting. An unfinished step is not counted."""
        self._on, self._unwritten = False, None
        self._stop()
        if self._recorder is not None:
            self._recorder.remove_listener(self._step_ended)
        self._graphs.remove()
        self._patches.restore()

    def _step_ended(self) -> None:
        counted = self._counting
        if counted is not None:
            self._uncountable = self._uncountable or self._reason_to_skip()
            self._stop()
            self._unwritten = counted
        if self._unwritten is not None and (self._uncountable is not None or self._masks.arrived):
            self._write(self._unwritten)
            self._unwritten = None
        if self._unwritten is None:
            self._active_recorder.remove_listener(self._step_ended)
        if self._uncountable is not None:
            self._set_state(self._uncountable)

    def _between_steps(self) -> None:
        """Look at the step that begins. Mostly nothing is to do: a step is due, or makes up for another one."""
        if self._uncountable is not None or is_due(self._active_recorder.shared.step):
            self._decide()

    def _start_or_stop(self) -> None:
        if self._on and self._uncountable is None:
            self._uncountable = self._reason_to_skip()
            if self._uncountable is None:
                self._start()
        if self._uncountable is not None:
            self._stop()
            self._set_state(self._uncountable)

    @property
    def _active_recorder(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder

    def _reason_to_skip(self) -> str | None:
        if self._phases.others_call_modules():
            return OTHER_THREADS
        return HIDDEN if self._graphs.hidden or has_compiled_autograd() else None

    def _set_state(self, state: str) -> None:
        """Set the probe's state for the report. A training may stop compiling, so the next due step is tried again."""
        recorder, self._uncountable = self._active_recorder, None
        if recorder.probes.get(self.name) != state:
            recorder.probes[self.name] = state
            recorder.write_metadata()

    def _start(self) -> None:
        self._counting, self._unwritten = self._active_recorder.shared.step, None
        self._active_recorder.between_steps(self._step_ended)
        self._phases.observe_modules(self)
        self._graphs.around = self._around_graph
        self._thread, self._counts_by_thread, self._masks = _ThreadState(), [], CausalMasks()
        self._remove_kernels()  # those of a step in which they could not be removed
        put = guard(self._put)
        for operator in (*FORMULAS, *SOFTMAXES):
            put(self._interposed, "aten", operator)
        for operator in LIBRARY_FORMULAS:
            put(self._library, FLASH_ATTN, operator)

    def _stop(self) -> None:
        self._counting = self._graphs.around = None
        self._phases.ignore_modules(self)
        if not self._phases.others_call_modules():
            self._remove_kernels()

    def _remove_kernels(self) -> None:
        self._interposed.remove()
        self._library.remove()

    def _write(self, step: int) -> None:
        """Write one record per phase, kind of work and dtype, at the step's end."""
        if self._uncountable is not None:
            return
        flops: Counter[tuple[Phase, Work, str]] = Counter()
        shares = self._masks.shares()
        for counts in self._counts_by_thread:
            for (phase, work, dtype, square), count in counts.items():
                needed = count if square not in shares else round(shares[square] * count)
                flops[phase, HALVED[work] if square in shares else work, dtype_name(dtype)] += needed
                if count > needed:
                    flops[phase, Work.HIDDEN_ATTENTION, dtype_name(dtype)] += count - needed
        recorder, now = self._active_recorder, monotonic_ns()
        for (phase, work, name), count in flops.items():
            number = recorder.names.intern(name)
            recorder.main.write(Kind.FLOPS, now, now, phase, number, tag=work, value=count, step=step)
        self._set_state(self._state)

    def _count(self, phase: Phase, work: Work, dtype: Any, flops: int, square: Square | None = None) -> None:
        thread = self._thread
        if thread.counts is None:
            thread.counts = Counter()
            self._counts_by_thread.append(thread.counts)
        thread.counts[phase, work, dtype, square if work in HALVED else None] += flops

    def _put(self, interposed: Interposed, namespace: str, operator: str) -> None:
        """Put a kernel of ours before an operator. An operator that is not there needs none."""
        import torch

        name, _, overload = operator.partition(".")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        overload_operator = getattr(packet, overload or "default", None)
        if overload_operator is None:
            return
        names = [argument.name for argument in overload_operator._schema.arguments]
        counting = functools.partial(self._around, operator, names)
        try:
            interposed.put(operator, self._around_softmax if operator in SOFTMAXES else counting)
        except RuntimeError as error:
            self._uncountable = f"off: {error}; {REMEDY}"

    def _around(self, operator: str, names: list[str], proceed: Kernel, below: Any) -> Kernel:
        thread, recorder, count_product = self._thread, self._active_recorder, guard(self._count_product)

        def product(keys: Any, *arguments: Any, **named: Any) -> Any:
            if thread.inside_product or self._counting is None or not recorder.active:
                return proceed(keys & below, *arguments, **named)
            count_product(operator, names, arguments, named)
            thread.inside_product = True
            try:
                return proceed(keys & below, *arguments, **named)
            finally:
                thread.inside_product = False

        return product

    def _around_softmax(self, proceed: Kernel, below: Any) -> Kernel:
        look = guard(self._look_at_scores)

        def softmax(keys: Any, scores: Any, dim: int, *arguments: Any, **named: Any) -> Any:
            look(scores, dim)
            return proceed(keys & below, scores, dim, *arguments, **named)

        return softmax

    def _look_at_scores(self, scores: Any, dim: int) -> None:
        training = self._counting is not None and not self._thread.inside_product and self._phase() is not None
        if training and is_dense({"scores": scores}) and not is_shape_only(scores) and not is_capturing():
            with without_modes():
                self._masks.saw_scores(scores, dim)

    def _square(self, operator: str, call: dict[str, Any]) -> Square | None:
        """Return the shape of the attention that a product may be part of, if only its mask decides its causality."""
        if "query" not in call or call.get("is_causal"):
            return square_of(operator, call)
        if is_capturing():
            return None
        with without_modes():
            return self._masks.saw_attention(call)

    def _count_product(
        self, operator: str, names: list[str], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        phase = self._phase()
        if phase is None or is_shape_only(arguments[0]) or (phase is Phase.BACKWARD and self._in_compiled_backward()):
            return
        call = {**dict(zip(names, arguments, strict=False)), **named}
        if not is_dense(call):
            self._uncountable = SPARSE
            return
        dtype, parts = (FORMULAS.get(operator) or LIBRARY_FORMULAS[operator])(call)
        if not parts:
            self._uncountable = PACKED
        self._thread.products += 1
        square = self._square(operator, call)
        for work, flops in parts:
            self._count(phase, work, dtype, flops, square)

    def _phase(self) -> Phase | None:
        """Return the phase of the calling thread's products. None outside training (a rollout, an evaluation).

        None too while torch.jit traces: it would write the questions for shapes into its graph.
        """
        if self._active_recorder.threads.parts or self._is_tracing():
            return None
        if self._graph_task() != NO_GRAPH_TASK:
            return Phase.RECOMPUTE if self._thread.recomputing or self._is_recomputed() else Phase.BACKWARD
        if self._thread.modules:
            return None if self._thread.evaluating else Phase.FORWARD
        return Phase.FORWARD if self._grad_enabled() else None

    def _is_recomputed(self) -> bool:
        """Return whether the running part of backward is a recomputed forward.

        Inside an `autograd.Function` or a custom operator gradients are off. There the module around them decides.
        """
        return self._grad_enabled() and not self._second_order

    @contextmanager
    def _set_apart(self) -> Iterator[None]:
        """Let no hook act on the calling thread: it compiles, or runs a graph only to count."""
        thread = self._thread
        outer, thread.inside_product = thread.inside_product, True
        try:
            with self._phases.set_apart():
                yield
        finally:
            thread.inside_product = outer

    def _around_graph(self, graph: CapturedGraph, compiled: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call compiled code. Its products count by its graph, so those of its kernels that we see do not."""
        thread = self._thread
        if thread.inside_product or not self._active_recorder.active:
            return compiled(*args)
        cost = self._begin_graph(graph, args)
        thread.inside_product = True
        try:
            outputs = compiled(*args)
        finally:
            thread.inside_product = False
        if cost is None:
            self._uncountable = COMPILED.format("")
        else:
            self._end_graph(cost, outputs)
        return outputs

    def _graph_begins(self, graph: CapturedGraph, args: tuple[Any, ...]) -> GraphCost | None:
        """Count a graph's forward. Returns its cost, without FLOPs if it does not train."""
        phase = self._phase()
        if phase is None:
            return GraphCost()
        cost = graph.cost(args)
        if cost.problem is not None:
            self._uncountable = COMPILED.format(f": {cost.problem}")
        self._state = BY_GRAPHS
        self._thread.products += 1
        of_model = phase is not Phase.FORWARD or self._thread.modules
        for products in (cost.forward, cost.without_gradients if of_model else {}):
            for (work, dtype), flops in products.items():
                self._count(phase, work, dtype, flops)
        return cost

    def _graph_ended(self, cost: GraphCost, outputs: Any) -> None:
        """Count a graph's backward when autograd runs it, if it does so in this step."""
        step = self._counting
        node, is_lost = backward_node(outputs) if cost.backward else (None, False)
        if is_lost:
            self._uncountable = COMPILED.format(": its backward was not found")

        def begins(*_: Any) -> None:
            if self._counting == step:
                for (work, dtype), flops in cost.backward.items():
                    self._count(Phase.BACKWARD, work, dtype, flops)

        if node is not None:
            node.register_prehook(guard(begins))

    def _in_compiled_backward(self) -> bool:
        return self._graphs.any and running_node().startswith(COMPILED_BACKWARD)

    def _enter_module(self, module: Any, _is_root: bool) -> Entered | None:
        thread = self._thread
        if thread.inside_product or self._graphs.running.uncounted:
            return None
        if not thread.modules:
            thread.evaluating = not (self._grad_enabled() or module.training)
        recomputed = self._graph_task() != NO_GRAPH_TASK and self._is_recomputed()
        if thread.modules == MAX_DEPTH:
            self._uncountable = DEEP
            self._stop()
        entered = thread, thread.recomputing, thread.products
        thread.recomputing = thread.recomputing or recomputed
        thread.modules += 1
        return entered

    def ended(self, entered: Entered, module: Any, args: tuple[Any, ...], result: Any) -> None:
        """Count a module's call, and leave it. What runs behind no guard calls nothing: modules may be nested deep."""
        thread, recomputing, products = entered
        thread.modules -= 1
        try:
            self._leave(module, products, args, result)
        finally:
            thread.recomputing = recomputing

    def _leave_module(self, module: Any, products: int, args: tuple[Any, ...], result: Any) -> None:
        """Count the FLOPs that a module's own matrices imply for its input tokens.

        A recomputed forward adds none of them, but its backward may be the only one (reentrant checkpoints).
        """
        phase = self._phase()
        if phase not in (Phase.FORWARD, Phase.RECOMPUTE) or not args:
            return
        with without_functions():
            implied = implied_flops(module, args[0])
            if not implied:
                return
            seen = self._thread.products > products or self._count_by_weight(module, args[0], result, phase)
        if phase is Phase.RECOMPUTE:
            return
        self._count(Phase.FORWARD, Work.IMPLIED, None, implied)
        self._count(Phase.FORWARD, Work.COVERED, None, implied if seen else 0)

    def _count_by_weight(self, module: Any, activation: Any, result: Any, phase: Phase) -> bool:
        """Count a linear module whose kernel is a library's own, by its shapes. Returns whether it is one.

        Its backward counts when autograd runs it, unless that runs products which are counted.
        """
        flops = linear_flops(module, activation, result)
        if not flops:
            return False
        (weight,) = (each for each in module._parameters.values() if each is not None and each.dim() > 1)
        node = None if result.grad_fn is None else multiplying_node(result.grad_fn, weight)
        if node is not None and weight.requires_grad and is_of_torch(node):
            return False  # the matrix is added, or scales
        self._thread.products += 1
        if phase is Phase.FORWARD:
            self._count(phase, Work.BY_MODULE, result.dtype, flops)
        back = flops * (activation.requires_grad + weight.requires_grad)
        if node is not None and back:
            self._count_backward_of(node, result.dtype, back)
        return True

    def _count_backward_of(self, node: Any, dtype: Any, flops: int) -> None:
        thread, step, before = self._thread, self._counting, [0]

        def begins(*_: Any) -> None:
            before[0] = thread.products

        def ended(*_: Any) -> None:
            if self._counting == step and thread.products == before[0]:
                self._count(Phase.BACKWARD, Work.BY_MODULE, dtype, flops)

        node.register_prehook(guard(begins))
        node.register_hook(guard(ended))

    def _patch_backward(self) -> None:
        owners, name = autograd_engine()
        backward = self._tracking_order(getattr(owners[0], name))
        for owner in owners:
            self._patches.replace(owner, name, backward)

    def _tracking_order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            second_order = len(args) > CREATE_GRAPH_AT and bool(args[CREATE_GRAPH_AT])
            self._second_order += second_order
            try:
                return original(*args, **kwargs)
            finally:
                self._second_order -= second_order

        return backward

    def _patch_graphs(self) -> None:
        """Detect CUDA graphs: a captured call does not run, and a replayed one passes no operator."""
        from torch.cuda import CUDAGraph

        for name in ("capture_begin", "replay"):
            self._patches.replace(CUDAGraph, name, self._tracking_graphs(getattr(CUDAGraph, name)))

    def _tracking_graphs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def graph(*args: Any, **kwargs: Any) -> Any:
            if self._counting is not None and not (self._thread.inside_product or self._in_compiled_backward()):
                self._uncountable = CAPTURED
            return original(*args, **kwargs)

        return graph
