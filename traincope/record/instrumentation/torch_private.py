"""Every private name of torch that the recorder uses, each behind a function.

If a torch lacks one, the function raises AttributeError or ImportError. The probe that needs it is then absent and
reports so. Nothing else changes.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any

from traincope.record.instrumentation.asynchronous import is_asynchronous

SEQUENCE_NUMBERS = (1 << 31) - 1


def rendezvous_store(*, timeout: timedelta) -> Any:
    """Return the default process group's store, on a separate connection if this torch can open one (2.7+).

    Otherwise it is the job's own store: checking a key, and getting an existing one, waits for no rank. So it is for a
    store on disk, which has no connection: it counts its copies in its file, and the last one removes the file.
    """
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    if not hasattr(store, "clone") or is_on_disk(store):
        return store
    connection = store.clone()
    connection.set_timeout(timeout)
    return connection


def is_on_disk(store: Any) -> bool:
    """Return whether the store keeps its values in a file."""
    from torch._C._distributed_c10d import FileStore

    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return isinstance(store, FileStore)


def sequence_number(group: Any) -> int:
    """Return the number of collectives that the group has issued, 1 or more, or 0 if this torch or backend has none.

    It wraps to fit into 31 bits.
    """
    try:
        return 1 + int(group._get_sequence_number_for_group()) % SEQUENCE_NUMBERS
    except (AttributeError, RuntimeError) as error:
        if is_asynchronous(error):
            raise
        return 0


def keys_below(key: str) -> Any:
    """Return the dispatch keys after `key`."""
    import torch

    return torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, key))


def redispatcher(namespace: str, operator: str) -> Any:
    """Return a function that calls an operator (`name` or `name.overload`) below given keys, without the GIL."""
    import torch

    name, _, overload = operator.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")._handle.redispatch_boxed


def kernel_library(namespace: str, file: str) -> Any:
    """Return an empty registration of kernels for a namespace's operators. torch reports `file` as their origin.

    `impl(operator, key, kernel, with_keyset)` adds a kernel, `reset()` removes all. `torch.library.Library` does the
    same in milliseconds.
    """
    import torch

    return torch._C._dispatch_library("IMPL", namespace, "", file, 1)


def destroyer(library: Any) -> Any:
    """Return a function that removes a library's kernels from the dispatcher."""
    return library._destroy


def without_modes() -> AbstractContextManager[Any]:
    """Return a context in which no dispatch mode (`TorchDispatchMode`) sees the calling thread, if this torch can do
    so.
    """
    import torch

    guard: AbstractContextManager[Any] = getattr(torch._C, "_DisableTorchDispatch", nullcontext)()
    return guard


def without_functions() -> AbstractContextManager[Any]:
    """Return a context in which no function mode (`TorchFunctionMode`) sees the calling thread, if this torch can do
    so.
    """
    import torch

    guard: AbstractContextManager[Any] = getattr(torch._C, "DisableTorchFunction", nullcontext)()
    return guard


def has_dispatch_mode() -> bool:
    """Return whether a dispatch mode (`TorchDispatchMode`) sees the operators of the calling thread."""
    import torch

    return torch._C._len_torch_dispatch_stack() > 0


def has_kernel(operator: str, key: str) -> bool:
    """Return whether a kernel of an operator (`c10d::allreduce_`) is registered at a dispatch key."""
    import torch

    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


def live_kernel(operator: str, key: str) -> str:
    """Describe the kernel that answers at a key, in the dispatcher's words: above all, where it was registered.

    Empty if this torch does not report it.
    """
    import torch

    dump = getattr(torch._C, "_dispatch_dump_table", str)
    lines = dump(operator).splitlines()
    return next((line for line in lines if line.startswith(f"{key}:")), "")


def single_tensor_methods() -> dict[str, str]:
    """Return the operators of `ProcessGroup`'s gather into and scatter from one tensor, by method, in a torch before
    2.13.

    Later ones have public methods as well, and call those.
    """
    from torch.distributed import ProcessGroup

    methods = {"_allgather_base": "_allgather_base_", "_reduce_scatter_base": "_reduce_scatter_base_"}
    return {method: operator for method, operator in methods.items() if hasattr(ProcessGroup, method)}


def flight_recorder() -> Callable[[], bytes]:
    """Return a function that returns torch's flight recorder, the latest collectives of all groups, as JSON."""
    from torch._C import _distributed_c10d

    dump: Callable[[], bytes] | None = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        raise AttributeError("this torch has no flight recorder")
    return dump


def group_ranks() -> dict[str, list[int]]:
    """Return torch's name of each group of this process, and the group's ranks in its order.

    torch also keeps an entry for groups of which the process is no member. It has no name.
    """
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    named = [(world.pg_names.get(group), ranks) for group, ranks in world.pg_group_ranks.items()]
    return {str(name): list(map(int, ranks)) for name, ranks in named if name is not None}


def group_maker() -> tuple[Any, str]:
    """Return the module and the name of the function in which every new process group is made."""
    from torch.distributed import distributed_c10d

    name = "_new_group_with_tag"
    getattr(distributed_c10d, name)
    return distributed_c10d, name


def num_named_groups() -> int:
    """Return the number of groups that this process has named by their number. torch then gives the next one its name
    by it, so that the ranks that make a group together must have made the same number before.
    """
    from torch.distributed import distributed_c10d

    return int(distributed_c10d._world.group_count)


def flight_recorded() -> tuple[int, bool] | None:
    """Return the number of collectives in torch's flight recorder, and whether messages are among them.

    None if this process has no flight recorder. Takes some 30 ms, most of it to write the JSON, of which only the
    needed part is read. (Its numbers by group are faster to get, but count a barrier twice on gloo.)
    """
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    text = b"" if dump is None else dump()
    numbers = re.findall(rb'"record_id":(\d+)', text)
    return (int(numbers[-1]) + 1, b'"is_p2p":true' in text) if numbers else None


def async_position(operator: str) -> int | None:
    """Return the position of a c10d operator's asynchronous flag. None if this torch has none."""
    import torch

    arguments = getattr(torch.ops.c10d, operator).default._schema.arguments
    names = [argument.name for argument in arguments]
    return next((at for at, name in enumerate(names) if name in ("async_op", "asyncOp")), None)


def num_arguments(namespace: str, operator: str) -> int:
    """Return the number of an operator's arguments."""
    import torch

    return len(getattr(getattr(torch.ops, namespace), operator).default._schema.arguments)


def cpu_backend(group: Any) -> Any:
    """Return the backend of a group's collectives on the CPU. None if it has none."""
    import torch

    try:
        return group._get_backend(torch.device("cpu"))
    except (AttributeError, RuntimeError) as error:
        if is_asynchronous(error):
            raise
        return None


def is_plugin(backend: str) -> bool:
    """Return whether a backend was registered by another library."""
    from torch.distributed import Backend

    return backend.upper() in Backend._plugins


def graph_task_reader() -> Any:
    """Return a function that returns the number of the calling thread's backward, or -1."""
    import torch

    return torch._C._current_graph_task_id


def autograd_engine() -> tuple[tuple[Any, ...], str]:
    """Return the modules and the name of the function by which all of torch in Python runs autograd's engine.

    Its first arguments are the outputs, their gradients, `retain_graph` and `create_graph`, by position.
    """
    from torch import autograd
    from torch.autograd import graph

    graph._engine_run_backward  # noqa: B018 - raises if it is missing
    return (graph, autograd), "_engine_run_backward"


def is_plain_module_call(function: Any) -> bool:
    """Return whether `torch.nn.Module.__call__` only chooses between a module's compiled call and its plain one.

    Every supported torch does so. Another library may have replaced the function.
    """
    code = getattr(function, "__code__", None)
    names = None if code is None else (code.co_names, code.co_varnames, code.co_freevars)
    return names == (("_compiled_call_impl", "_call_impl"), ("self", "args", "kwargs"), ())


def profiler_start() -> tuple[Any, str]:
    """Return the module and the name of the function that starts torch's profiler, whoever uses it from Python."""
    from torch.autograd import profiler

    profiler._enable_profiler  # type: ignore[attr-defined]  # noqa: B018
    return profiler, "_enable_profiler"


def import_for_profiler() -> None:
    """Import the module that torch (2.13+) otherwise imports while it profiles.

    torch's profiler keeps no reference to the code that it lists. That of a module is gone after its import, and what
    the recorder allocates may take its place: reading the profile then fails.
    """
    with suppress(ImportError):
        import torch.profiler._cupti_monitor  # noqa: F401


def weight_of(node: Any) -> Any:
    """Return the tensor whose gradient a node of autograd's graph accumulates. None for any other node."""
    return node.variable if type(node).__name__ == "AccumulateGrad" else None


def version_of(tensor: Any) -> int:
    """Return torch's count of a tensor's changes in place. A change by `.data` does not count."""
    return int(tensor._version)


def has_storage(tensor: Any) -> bool:
    """Return whether a tensor has memory of its own. The wrappers of `torch.func` have none."""
    import torch

    return bool(torch._C._has_storage(tensor))


def raw_stream_reader() -> Any:
    """Return a function that returns the raw handle of the calling thread's current stream on a CUDA device index."""
    import torch

    return torch._C._cuda_getCurrentRawStream


def plain_event() -> Any:
    """Return the class of CUDA events in C++, whose `record` takes a stream."""
    import torch

    return torch._C._CudaEventBase


def data_loader_iterator() -> Any:
    """Return the class whose `__next__` every DataLoader iterator runs."""
    from torch.utils.data import dataloader

    return dataloader._BaseDataLoaderIter


def sampler_of(iterator: Any) -> tuple[Any, Any]:
    """Return what gives a DataLoader's iterator its batches of indices, and the sampler in it; None if unknown.

    accelerate puts what gives each rank its batches around the one that has the sampler.
    """
    batches = getattr(iterator, "_index_sampler", None)
    sampler = getattr(batches, "sampler", None)
    return batches, getattr(getattr(batches, "batch_sampler", None), "sampler", None) if sampler is None else sampler


def loader_workers(iterator: Any) -> list[int]:
    """Return the process ids of the workers of a DataLoader's iterator; empty without workers."""
    return [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.pid is not None]


def reads_a_stream(iterator: Any) -> bool:
    """Return whether a DataLoader's iterator reads an iterable dataset, of which each worker has a copy."""
    from torch.utils.data import dataloader

    return getattr(iterator, "_dataset_kind", None) == dataloader._DatasetKind.Iterable


def pipeline_stage() -> Any:
    """Return the class whose chunk methods every pipeline schedule calls."""
    from torch.distributed.pipelining import stage

    return stage._PipelineStageBase


def pipeline_schedule() -> Any:
    """Return the base class of every schedule. It computes the loss in `_maybe_compute_loss`."""
    from torch.distributed.pipelining import schedules

    schedules._PipelineSchedule._maybe_compute_loss  # noqa: B018 - raises if it is missing
    return schedules._PipelineSchedule


def end_of_batch() -> tuple[Any, str]:
    """Return the class and the name of the method that ends a batch of messages, and returns their common work."""
    from torch.distributed import ProcessGroup

    ProcessGroup._end_coalescing  # noqa: B018
    return ProcessGroup, "_end_coalescing"


def ddp_pre_forward() -> str:
    """Return the name of DistributedDataParallel's method that broadcasts buffers before the forward."""
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel._pre_forward  # noqa: B018
    return "_pre_forward"


def hide_from_compiler(function: Any, *, calls_too: bool) -> None:
    """Keep torch.compile from compiling a Python function of ours that runs in a region it watches.

    `calls_too`: nor anything that function calls. Without it Dynamo traces our hooks, breaks its graphs on what it
    finds there, and warns. A torch without this control compiles them. Before torch is imported, nothing compiles.
    """
    if "torch._C" not in sys.modules:
        return
    from torch._C import _dynamo

    actions = getattr(_dynamo.eval_frame, "_FrameAction", None)
    strategy = getattr(_dynamo.eval_frame, "_FrameExecStrategy", None)
    set_strategy = getattr(_dynamo.eval_frame, "set_code_exec_strategy", None)
    code = getattr(function, "__code__", None)
    if actions is None or strategy is None or set_strategy is None or code is None:
        return
    set_strategy(code, strategy(actions.SKIP, actions.SKIP if calls_too else actions.DEFAULT))


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has made in this process. Does not import it."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def captured_graph_class() -> tuple[Any, str]:
    """Return the class of a graph that torch.compile captures, and its method that gives it to the backend.

    TorchDynamo is imported already.
    """
    owner = sys.modules["torch._dynamo.output_graph"].OutputGraph
    owner.call_user_compiler  # noqa: B018
    return owner, "call_user_compiler"


def num_aot_graphs() -> int:
    """Return the number of graphs that backends gave to AOTAutograd. TorchDynamo is imported already."""
    return int(sys.modules["torch._dynamo.utils"].counters["aot_autograd"]["total"])


def has_compiled_autograd() -> bool:
    """Return whether torch also compiles the backward of eager code, or has done so: it is only on inside a context."""
    module, utils = (sys.modules.get(f"torch._dynamo.{name}") for name in ("compiled_autograd", "utils"))
    has_captured = utils is not None and utils.counters["compiled_autograd"]["captures"] > 0
    return bool(getattr(module, "compiled_autograd_enabled", False)) or has_captured


def running_node() -> str:
    """Return the name of autograd's node that the calling thread runs. Empty outside a backward."""
    import torch

    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


class Kineto:
    """torch's profiler below its Python API: no stacks, no shapes, no table of events in Python.

    Raises ImportError if this torch is built without it.
    """

    tracing = False
    """True while a trace of this class is on."""

    def __init__(self) -> None:
        from torch._C import _autograd, _profiler
        from torch.autograd import profiler

        activity = _profiler.ProfilerActivity
        supported = _autograd._supported_activities()
        self._activities: set[Any] = {kind for kind in (activity.CPU, activity.CUDA) if kind in supported}
        self._config = _profiler.ProfilerConfig(
            _profiler.ProfilerState.KINETO, False, False, False, False, False, _profiler._ExperimentalConfig()
        )
        self._autograd = _autograd
        self.entrance: tuple[Any, str] = (profiler, "_prepare_profiler")
        """Owner and name of the function that every use of torch's profiler calls first."""
        self.enter = getattr(*self.entrance)

    def is_on(self) -> bool:
        return bool(self._autograd._profiler_enabled())

    def start(self) -> None:
        self._autograd._prepare_profiler(self._config, self._activities)
        self._autograd._enable_profiler(self._config, self._activities)
        Kineto.tracing = True

    def stop(self) -> Any:
        """Return the trace; `.save(path)` writes it. Kernels that have not run yet are missing."""
        Kineto.tracing = False
        return self._autograd._disable_profiler()


def profiles_itself() -> Callable[[], bool]:
    """Return a function: whether a profiler of the training is on, a `Kineto` not counted. It takes 0.1 us."""
    from torch._C import _autograd

    is_on = _autograd._profiler_enabled
    return lambda: bool(is_on()) and not Kineto.tracing


def fp32_runs_as_tf32(*, convolution: bool) -> bool:
    """Return whether the GPU in use multiplies fp32 as TF32.

    torch.get_float32_matmul_precision() is not used: it raises if the precision was set by its newer names.
    """
    import torch

    if not torch.cuda.is_initialized():
        return False
    switch = getattr(torch.backends.cudnn, "conv", None) if convolution else torch.backends.cuda.matmul
    precision = getattr(switch, "fp32_precision", None)
    if precision is not None:
        return bool(precision == "tf32")
    return bool(torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32)


def fsdp_parameters(module: Any) -> Iterator[tuple[Any, Any, list[Any], list[Any]]]:
    """Yield each parameter that FSDP2 shards at `module`, as four things.

    They are its shard on this rank, the parameter that stands in for it while it is gathered or None, the buffers that
    it is gathered into (without storage outside of that time), and gradients that are not reduced yet. Empty if
    FSDP2 does not manage the module, or if this torch keeps them under other names.
    """
    for group in _fsdp_groups(module) or ():
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            gradients = [getattr(whole, "grad", None), parameter.unsharded_accumulated_grad]
            yield (
                parameter.sharded_param,
                whole,
                list(parameter.all_gather_outputs),
                [gradient for gradient in gradients if gradient is not None],
            )


def unit_ranks(module: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the library that reduces the gradients of a module as a unit, and the ranks over which it does.

    They are those among which FSDP shards the unit, also with replicas of the shards, and none if it ignores all of the
    unit's parameters. None: the module is no unit.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    groups = _fsdp_groups(module)
    if groups is not None:
        infos = [group.mesh_info for group in groups]
        known = [getattr(info, f"{kind}_process_group", None) for info in infos for kind in ("shard", "replicate")]
        used = [group for group in known if group is not None]
        return "FSDP", tuple(dist.get_process_group_ranks(used[0])) if used else ()
    if isinstance(module, DistributedDataParallel):
        return "DDP", tuple(dist.get_process_group_ranks(module.process_group))
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
        return "FSDP", tuple(dist.get_process_group_ranks(module.process_group))
    return None


def _fsdp_groups(module: Any) -> list[Any] | None:
    """Groups of the parameters that FSDP2 shards at a module; None if it does not manage the module."""
    state_of = getattr(type(module), "_get_fsdp_state", None)
    if state_of is None:
        return None
    state = state_of(module)
    groups: list[Any] | None = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch before 2.11
        groups = [group] if (group := getattr(state, "_fsdp_param_group", None)) is not None else []
    return groups
