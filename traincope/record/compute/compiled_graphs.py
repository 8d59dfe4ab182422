"""FLOPs of code that torch.compile captured, from its graphs.

TorchDynamo gives every graph of the training's operators to a backend, which may replace them by kernels of its own. We
keep the graph, and run it once on tensors without data: forward, and the gradients of all inputs that need one, through
the formulas that count other products (`flop_formulas.py`). This happens at the graph's first call, just after its
compilation, and again in a counted step for shapes that are new.

These are the FLOPs of the mathematics. What the compiled kernels really execute, recomputation included, is not
visible.
"""

import functools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from math import prod
from typing import Any

from traincope.events import Work
from traincope.record.compute.causal_masks import HALVED, Square, square_of
from traincope.record.compute.flop_formulas import FLASH_ATTN, FORMULAS, LIBRARY_FORMULAS
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.late_imports import WhenImported
from traincope.record.instrumentation.own_threads import OwnThread
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import captured_graph_class, compiled_graphs, num_aot_graphs
from traincope.record.session.recorder import Recorder

Products = Counter[tuple[Work, Any]]
"""FLOPs by kind of work and dtype."""
Shaped = Counter[tuple[Work, Any, Square | None]]
"""The same by the shape of the attention that they may belong to."""

NAMESPACES = ("aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", FLASH_ATTN)
"""Namespaces of operators that multiply only by the formulas."""
QUERIES = frozenset(
    {
        *("device", "layout", "dim", "numel", "sym_numel", "size", "sym_size", "stride", "sym_stride"),
        *("storage_offset", "sym_storage_offset", "is_contiguous", "sym_is_contiguous"),
        *("is_strides_like_format", "is_non_overlapping_and_dense"),
    }
)
"""Operators by which C++ asks a tensor for its form, where no exception may pass: the process would abort.

torch's own counter passes the same ones on."""
ATTENTION = "scaled_dot_product_attention"
IS_CAUSAL_AT = 5
"""Position of its argument `is_causal`."""
CHECKPOINT = "tag_activation_checkpoint"
"""torch's operator for a region that the compiled backward may compute again."""
COMPILED_BACKWARD = "CompiledFunctionBackward"
"""Name of the node of autograd that runs a compiled graph's backward."""
NODE_OF_TORCH = re.compile(r"\w+Backward\d+")
"""Names of autograd's nodes of torch's own operators: AddBackward0. Those of libraries end without a number."""
MAX_NODES = 16
"""Nodes of autograd between an output and its graph: views and copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCost:
    """FLOPs of one call of a graph; `problem`: the reason why they are unknown."""

    forward: Products = field(default_factory=Counter)
    without_gradients: Products = field(default_factory=Counter)
    """Products of the forward under `no_grad`: the model's in a module, otherwise an optimizer's."""
    backward: Products = field(default_factory=Counter)
    problem: str | None = None


SetApart = Callable[[], AbstractContextManager[None]]
"""Makes a context in which no hook of ours acts on the calling thread."""


class CapturedGraph:
    """A graph of the training's operators, and what its calls cost by the shapes of their arguments."""

    def __init__(self, module: Any, set_apart: SetApart) -> None:
        self._module, self._set_apart = _copied(module), set_apart
        self._costs: dict[object, GraphCost] = {}
        self._count = guard(self._count_on_a_thread)

    def cost(self, args: tuple[Any, ...]) -> GraphCost:
        """Return the FLOPs of a call with these arguments. Their data is not read."""
        import torch

        shapes = (torch.is_grad_enabled(), *map(_shape, args))
        if shapes not in self._costs:
            self._costs[shapes] = self._count(args) or GraphCost(problem="its operators cannot run without data")
        return self._costs[shapes]

    @property
    def is_new(self) -> bool:
        return not self._costs

    def _count_on_a_thread(self, args: tuple[Any, ...]) -> GraphCost | None:
        """Count on a thread of its own: a graph may switch autocast or gradients, which must not reach the training."""
        import torch

        devices = {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}
        autocast = {device: torch.get_autocast_dtype(device) for device in devices if torch.is_autocast_enabled(device)}
        results: list[GraphCost | None] = []
        count = guard(_count)

        def run(grad: bool) -> None:
            with self._set_apart():
                results.append(count(_interpreter(self._module), args, autocast, grad))

        counting = OwnThread(functools.partial(run, torch.is_grad_enabled()))
        counting.start()
        counting.join()
        return results[0]


def _copied(module: Any) -> Any:
    """Return a copy of a graph without examples of its values: backends change the graph, and examples hold memory."""
    from torch.fx import Graph, GraphModule

    graph, attributes = Graph(), {}
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        node.meta.clear()
        if node.op in ("get_attr", "call_module"):
            value = functools.reduce(getattr, node.target.split("."), module)
            attributes[node.target] = _copied(value) if isinstance(value, GraphModule) else value
    return GraphModule(attributes, graph)


Around = Callable[[CapturedGraph, Callable[..., Any], tuple[Any, ...]], Any]
"""Makes a call of compiled code: the graph, the code and its arguments."""


class Running(threading.local):
    """What the calling thread runs."""

    uncounted = False
    """Compiled code that was called before a counted step began: a backend may call its graph as a module."""


class CapturedGraphs:
    """Watch of the graphs that torch.compile makes from now on."""

    def __init__(self, set_apart: SetApart) -> None:
        self._set_apart = set_apart
        self._patches = Patches()
        self._late = WhenImported("torch._dynamo.output_graph", self._patch)
        self._recorder: Recorder | None = None
        self._on = False
        self.hidden = False
        """True if compiled code may run whose graph is unknown."""
        self.any = False
        """True once a graph was captured whose kernels may be invisible."""
        self.around: Around | None = None
        """A function that makes every call of compiled code, while FLOPs are counted."""
        self.running = Running()

    def install(self, recorder: Recorder) -> None:
        import torch

        self._on, self._recorder = True, recorder
        self.hidden = bool(compiled_graphs())
        self._late.watch(recorder.now_and_then, forget=recorder.remove_listener)
        original, check = torch.compile, guard(self._late.check)

        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            check()  # torch.compile has imported TorchDynamo
            return result

        self._patches.replace(torch, "compile", compile_)

    def remove(self) -> None:
        self._on, self.around = False, None
        self._late.stop()
        self._patches.restore()

    def _patch(self, _: object) -> None:
        if compiled_graphs():
            self.hidden = True
        owner, name = captured_graph_class()
        original, captured = getattr(owner, name), guard(self._captured)

        copy = guard(CapturedGraph)

        def call_user_compiler(graph: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            before, kept = num_aot_graphs(), copy(module, self._set_apart)
            with self._set_apart():  # a backend may run products to compare kernels
                compiled = original(graph, module, *args, **kwargs)
            return captured(graph, module, kept, compiled, num_aot_graphs() > before) or compiled

        self._patches.replace(owner, name, call_user_compiler)

    def _captured(
        self, owner: Any, module: Any, graph: CapturedGraph | None, compiled: Any, has_aot: bool
    ) -> Callable[..., Any] | None:
        """Return a function that calls `compiled` and can be observed; None if it needs no observation or allows none.

        The backend `eager` runs the graph's own operators, which are counted like any others. Other backends that
        bypass AOTAutograd have kernels of their own. A graph that holds parameters would add to their gradients.
        """
        if not has_aot:
            self.hidden = self.hidden or getattr(compiled, "__self__", compiled) is not module
            return None
        packaged = getattr(owner, "package", None) is not None  # saved for another process, and so not replaced
        if packaged or graph is None or next(module.parameters(), None) is not None:
            self.hidden = True
            return None
        self.any = True
        return self._observed(graph, compiled)

    def _observed(self, graph: CapturedGraph, compiled: Callable[..., Any]) -> Callable[..., Any]:
        learn, running = guard(graph.cost), self.running

        def call(*args: Any) -> Any:
            around = self.around
            if around is not None:
                return around(graph, compiled, args)
            if graph.is_new and self._on:
                learn(args)
            outer, running.uncounted = running.uncounted, True
            try:
                return compiled(*args)
            finally:
                running.uncounted = outer

        return call


def backward_node(outputs: Any) -> tuple[Any, bool]:
    """Return autograd's node of a compiled graph with these outputs, and whether it was lost.

    No node if no output needs a gradient. It is lost if it is not among the nodes nearest to the outputs.
    """
    ends = [node for each in _tensors(outputs) if (node := each.grad_fn) is not None]
    found = next((node for node in _nearest(ends) if node.name().startswith(COMPILED_BACKWARD)), None)
    return found, bool(ends) and found is None


def multiplying_node(end: Any, weight: Any) -> Any:
    """Return autograd's node that joins a weight with other values, among those nearest to a result; otherwise `end`.

    Views and casts of the weight lie between.
    """
    for node in _nearest([end]):
        if len(node.next_functions) > 1 and any(_leads_to(below, weight) for below, _ in node.next_functions):
            return node
    return end


def is_of_torch(node: Any) -> bool:
    """Return whether autograd's node joins values by an operator of torch, whose products are counted themselves."""
    return len(node.next_functions) > 1 and NODE_OF_TORCH.fullmatch(node.name()) is not None


def _leads_to(node: Any, weight: Any) -> bool:
    for _ in range(MAX_NODES):
        if node is None or getattr(node, "variable", None) is weight:
            break
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return node is not None and getattr(node, "variable", None) is weight


def _nearest(ends: list[Any]) -> Iterator[Any]:
    """Yield autograd's nodes before these, the nearest first, at most MAX_NODES."""
    waiting = list(ends)
    for _ in range(MAX_NODES):
        if not waiting:
            return
        node = waiting.pop(0)
        yield node
        waiting += [below for below, _ in node.next_functions if below is not None]


def _tensors(values: Any) -> Iterator[Any]:
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)


def _shape(value: Any) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.requires_grad
    return value if isinstance(value, int | float | bool) else type(value)


def _count(interpreter: Any, args: tuple[Any, ...], autocast: dict[str, Any], grad: bool) -> GraphCost:
    """Run a graph on tensors without data, and count.

    Leaving a thread's outermost autocast clears the cache of the whole process, so this thread never leaves it.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.autocast_increment_nesting()
    if any(not _is_plain(arg) for arg in args if isinstance(arg, torch.Tensor)):
        return GraphCost(problem="its arguments are DTensors or other subclasses of tensors")
    forward, without_gradients, backward = Shaped(), Shaped(), Shaped()
    problems: list[str] = []
    with torch.set_grad_enabled(grad), FakeTensorMode(allow_non_fake_inputs=True):
        leaves = [_without_data(arg) for arg in args]
        with ExitStack() as state:
            for device, dtype in autocast.items():
                state.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            inputs = [leaf.clone() if _grad_fn(arg) else leaf for leaf, arg in zip(leaves, args, strict=True)]
            with _counter(lambda: forward if torch.is_grad_enabled() else without_gradients, problems):
                outputs = interpreter.run(*inputs)
        ends = [each for each in _tensors(outputs) if each.requires_grad]
        begins = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if ends and begins:
            # Autograd's own thread of a GPU may be the one that waits for us.
            with _counter(lambda: backward, problems), torch.autograd.set_multithreading_enabled(False):
                torch.autograd.grad(ends, begins, [torch.empty_like(each) for each in ends], allow_unused=True)
    return GraphCost(
        forward=_with_causal(forward, interpreter.causal),
        without_gradients=_with_causal(without_gradients, interpreter.causal),
        backward=_with_causal(backward, interpreter.causal),
        problem=problems[0] if problems else None,
    )


def _with_causal(shaped: Shaped, causal: set[Square]) -> Products:
    """Label the products of attention that the graph declares causal, but that no fused kernel computes."""
    products = Products()
    for (work, dtype, square), flops in shaped.items():
        products[HALVED[work] if square in causal and work in HALVED else work, dtype] += flops
    return products


def _is_plain(tensor: Any) -> bool:
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _grad_fn(value: Any) -> bool:
    return getattr(value, "grad_fn", None) is not None


def _without_data(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return twin.requires_grad_(value.requires_grad)


def _interpreter(module: Any) -> Any:
    """Return a runner of a graph that computes checkpointed regions once. `causal`: shapes of causal attention."""
    from torch.fx import Interpreter

    causal: set[Square] = set()

    class Once(Interpreter):
        def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            name = getattr(target, "__name__", "")
            if name == CHECKPOINT:
                return Once(args[0]).run(*args[1:])
            if name == ATTENTION and (kwargs.get("is_causal") or args[IS_CAUSAL_AT : IS_CAUSAL_AT + 1] == (True,)):
                shape = (args[0] if args else kwargs["query"]).shape
                causal.add((prod(shape[:-2]), int(shape[-2])))
            return super().call_function(target, args, kwargs)

    Once.causal = causal  # type: ignore[attr-defined]

    return Once(module)


def _counter(products: Callable[[], Shaped], problems: list[str]) -> Any:
    """Return a dispatch mode that adds the FLOPs of each operator to what `products` returns then, and what it cannot
    count to `problems`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class CountingMode(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = kwargs or {}
            if getattr(operator, "_opname", "") in QUERIES:
                return operator(*args, **named)
            if not isinstance(operator, torch._ops.OpOverload) or operator.namespace not in NAMESPACES:
                problems.append(f"it calls {operator}, whose FLOPs are unknown")
                return operator(*args, **named)
            overload = operator._overloadname
            name = operator._opname if overload == "default" else f"{operator._opname}.{overload}"
            formula = (LIBRARY_FORMULAS if operator.namespace == FLASH_ATTN else FORMULAS).get(name)
            if formula is None:
                with self:
                    whole = operator.decompose(*args, **named)
                return operator(*args, **named) if whole is NotImplemented else whole
            names = (argument.name for argument in operator._schema.arguments)
            call = {**dict(zip(names, args, strict=False)), **named}
            dtype, counted = formula(call)
            if not counted:
                problems.append("it attends to packed documents, or in windows")
            for work, flops in counted:
                products()[work, dtype, square_of(operator._opname, call)] += flops
            return operator(*args, **named)

    return CountingMode()
