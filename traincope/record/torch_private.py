"""Every name of torch that is not public and that the recorder stands on, each behind a function.

A torch that lacks one makes the function raise AttributeError or ImportError: then the probe that
needs it is absent and says so, and nothing else changes.
"""

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any


def meeting_store(*, timeout: timedelta) -> Any:
    """The default process group's store, on a connection of our own where this torch can open one (2.7+).

    Else the job's own: asking whether a key is there, and getting one that is, waits for nobody.
    """
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    if not hasattr(store, "clone"):
        return store
    own = store.clone()
    own.set_timeout(timeout)
    return own


def keys_below(key: str) -> Any:
    """The dispatch keys that come after `key`."""
    import torch

    return torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, key))


def redispatcher(namespace: str, operator: str) -> Any:
    """Calls an operator (`name` or `name.overload`) below given dispatch keys, without the GIL."""
    import torch

    name, _, overload = operator.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")._handle.redispatch_boxed


def destroyer(library: Any) -> Any:
    """Takes a library's kernels out of the dispatcher."""
    return library._destroy


def without_modes() -> AbstractContextManager[Any]:
    """In it no dispatch mode of anybody (`TorchDispatchMode`) sees what the calling thread does, if this torch can."""
    import torch

    guard: AbstractContextManager[Any] = getattr(torch._C, "_DisableTorchDispatch", nullcontext)()
    return guard


def has_kernel(operator: str, key: str) -> bool:
    """Whether somebody has registered a kernel of an operator (`c10d::allreduce_`) at a dispatch key."""
    import torch

    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


def live_kernel(operator: str, key: str) -> str:
    """What the dispatcher says of the kernel that answers at a key: above all, where it was registered.

    Nothing, where this torch does not tell.
    """
    import torch

    dump = getattr(torch._C, "_dispatch_dump_table", str)
    lines = dump(operator).splitlines()
    return next((line for line in lines if line.startswith(f"{key}:")), "")


def single_tensor_methods() -> dict[str, str]:
    """`ProcessGroup`'s gather into and scatter from one tensor, and their operators, in a torch before 2.13.

    Later ones have public methods beside them, and call those.
    """
    from torch.distributed import ProcessGroup

    methods = {"_allgather_base": "_allgather_base_", "_reduce_scatter_base": "_reduce_scatter_base_"}
    return {method: operator for method, operator in methods.items() if hasattr(ProcessGroup, method)}


def flight_recorded() -> tuple[int, bool] | None:
    """How many collectives torch's flight recorder has numbered in this process, and whether messages are among them.

    None where it has none. Takes some 30 ms, most of it to write the JSON, of which only what is asked for is read.
    (Its numbers by group, which are quicker to get, count a barrier twice on gloo.)
    """
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    text = b"" if dump is None else dump()
    numbers = re.findall(rb'"record_id":(\d+)', text)
    return (int(numbers[-1]) + 1, b'"is_p2p":true' in text) if numbers else None


def async_position(operator: str) -> int | None:
    """Where a c10d operator has whether its caller goes on without waiting; None where this torch does not tell it."""
    import torch

    arguments = getattr(torch.ops.c10d, operator).default._schema.arguments
    names = [argument.name for argument in arguments]
    return next((at for at, name in enumerate(names) if name in ("async_op", "asyncOp")), None)


def graph_task_reader() -> Any:
    """Returns the number of the backward the calling thread is in, or -1."""
    import torch

    return torch._C._current_graph_task_id


def raw_stream_reader() -> Any:
    """Returns the handle of the calling thread's current stream on a CUDA device given by its index."""
    import torch

    return torch._C._cuda_getCurrentRawStream


def data_loader_iterator() -> Any:
    """The class whose `__next__` every DataLoader iterator runs."""
    from torch.utils.data import dataloader

    return dataloader._BaseDataLoaderIter


def pipeline_stage() -> Any:
    """The class whose chunk methods every pipeline schedule calls."""
    from torch.distributed.pipelining import stage

    return stage._PipelineStageBase


def pipeline_schedule() -> Any:
    """The class of which every schedule is one, and which computes the loss in `_maybe_compute_loss`."""
    from torch.distributed.pipelining import schedules

    schedules._PipelineSchedule._maybe_compute_loss  # noqa: B018 - asks whether it is there
    return schedules._PipelineSchedule


def ddp_pre_forward() -> str:
    """Name of DistributedDataParallel's method that broadcasts buffers before the forward."""
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel._pre_forward  # noqa: B018
    return "_pre_forward"


def hide_from_compiler(function: Any, *, calls_too: bool) -> None:
    """Keep torch.compile from compiling a Python function of ours that runs in a region it watches.

    `calls_too`: nor anything that function calls. Without it Dynamo traces our hooks, breaks its
    graphs on what it finds there, and warns. A torch that cannot be told so compiles them.
    """
    from torch._C import _dynamo

    actions = getattr(_dynamo.eval_frame, "_FrameAction", None)
    strategy = getattr(_dynamo.eval_frame, "_FrameExecStrategy", None)
    tell = getattr(_dynamo.eval_frame, "set_code_exec_strategy", None)
    code = getattr(function, "__code__", None)
    if actions is None or strategy is None or tell is None or code is None:
        return
    tell(code, strategy(actions.SKIP, actions.SKIP if calls_too else actions.DEFAULT))


def compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process; does not import it to find out."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


class Kineto:
    """torch's profiler below its Python face: no stacks, no shapes, no table of events in Python.

    Raises ImportError where this torch is built without it.
    """

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
        """Owner and name of what every use of torch's profiler calls first."""
        self.enter = getattr(*self.entrance)

    def is_on(self) -> bool:
        return bool(self._autograd._profiler_enabled())

    def start(self) -> None:
        self._autograd._prepare_profiler(self._config, self._activities)
        self._autograd._enable_profiler(self._config, self._activities)

    def stop(self) -> Any:
        """What was traced; `.save(path)` writes it. Kernels that have not run by now are not in it."""
        return self._autograd._disable_profiler()


def fp32_runs_as_tf32(*, convolution: bool) -> bool:
    """Whether the GPU in use multiplies fp32 as TF32.

    Not torch.get_float32_matmul_precision(): it raises where the precision was set by its newer names.
    """
    import torch

    if not torch.cuda.is_initialized():
        return False
    switch = getattr(torch.backends.cudnn, "conv", None) if convolution else torch.backends.cuda.matmul
    precision = getattr(switch, "fp32_precision", None)
    if precision is not None:
        return bool(precision == "tf32")
    return bool(torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32)
