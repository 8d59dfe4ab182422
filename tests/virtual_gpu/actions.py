"""The vocabulary of a program: the actions of each rank's host, and the device work that it launches.

All durations are integer ns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Literal


class Meaning(Enum):
    """Purpose of a host range or call. The name of a range never decides it."""

    STEP = "step"
    OPERATOR = "operator"
    """An operator that autograd knows. Outside of all phases it is forward."""
    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    DATA_WAIT = "data_wait"
    CHECKPOINT_STALL = "checkpoint_stall"
    GC = "gc"
    COMPILE = "compile"
    SYNC = "sync"
    ACTION = "action"
    """An action of a pipeline's schedule. Its range has torch's name: `PP:1F0`."""


PHASES = (Meaning.FORWARD, Meaning.BACKWARD, Meaning.RECOMPUTE, Meaning.OPTIMIZER)
ACTIVITIES = (Meaning.DATA_WAIT, Meaning.CHECKPOINT_STALL, Meaning.GC, Meaning.COMPILE, Meaning.SYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group."""

    name: str
    ranks: tuple[int, ...]
    description: str = "default_pg"

    @property
    def axis(self) -> str:
        return "world" if self.description == "default_pg" else self.description


class Kind(Enum):
    """Classes of device work."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A kernel or copy in a stream."""

    name: str
    duration_ns: int
    """Time on the wire of a collective, from the start of its last member's kernel."""
    stream: int
    kind: Kind = Kind.COMPUTE
    category: Literal["kernel", "gpu_memcpy", "gpu_memset"] = "kernel"
    group: Group | None = None
    """Group of a collective. Its members meet in the order in which each launches them."""
    operation: str = ""
    """Name of a collective, as torch writes it: `allreduce`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Host work that launches nothing."""

    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One runtime call that launches work: a kernel, a copy, or all works of a graph, each after the one before it."""

    works: tuple[Work, ...]
    call: str = "cudaLaunchKernel"
    blocking: bool = False
    """True if the call returns after the work: a synchronous copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvent:
    """An event that happens when all work queued in the stream before it has ended."""

    event: str
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEvent:
    """Work queued in the stream after this starts after the event's latest record."""

    event: str
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronize:
    """The host waits for the device: for an event, a stream, or, without either, all streams."""

    stream: int | None = None
    event: str | None = None

    @property
    def call(self) -> str:
        kind = "Event" if self.event is not None else "Device" if self.stream is None else "Stream"
        return f"cuda{kind}Synchronize"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnThread:
    """Actions of another host thread, for which this thread waits: autograd's backward."""

    thread: str
    body: tuple["Action", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Arguments of an operator as the profiler records them with `record_shapes=True`."""

    dims: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An operator, annotation or Python function around actions."""

    name: str
    body: tuple["Action", ...] = ()
    category: Literal["cpu_op", "user_annotation", "python_function"] = "user_annotation"
    meaning: Meaning | None = None
    sequence: int | None = None
    """Sequence number of an operator that autograd knows."""
    forward_thread: int | None = None
    """The thread of the forward operator, as Kineto writes it: 0 or absent for forward operators."""
    collective: Work | None = None
    """Collective that `record_param_comms` describes."""
    inputs: Inputs | None = None


Action = Sleep | Launch | RecordEvent | WaitEvent | Synchronize | OnThread | Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Clock of a host: `offset_ns` ahead at time 0, and gaining `drift_ppb` ns per second."""

    offset_ns: int = 0
    drift_ppb: int = 0

    def ns(self, true_ns: int) -> int:
        return self.offset_ns + true_ns + true_ns * self.drift_ppb // 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Actions of each rank's main thread, from time 0 on."""

    ranks: tuple[tuple[Action, ...], ...]
    call_ns: int = 1_000
    """Length of a runtime call that does not wait."""
    latency_ns: int = 3_000
    """From the begin of a call to the earliest start of its work."""
    wake_ns: int = 0
    """From the end of the work that a host waits for to the return of its call."""
    gap_ns: int = 0
    """Between two works of a stream."""
    clocks: tuple[Clock, ...] = (Clock(),)
    """Clocks of the hosts. Rank r is on host r, or on the last one."""
    untraced: frozenset[int] = frozenset()
    """Ranks whose traces are missing."""

    def clock(self, rank: int) -> Clock:
        return self.clocks[min(rank, len(self.clocks) - 1)]


COMPUTE_STREAM = 7
AUTOGRAD = "autograd"
US = 1_000


def kernel(us: int, stream: int = COMPUTE_STREAM, name: str = "gemm") -> Launch:
    return Launch(works=(Work(name=name, duration_ns=us * US, stream=stream),))


def sleep(us: int) -> Sleep:
    return Sleep(ns=us * US)


def copy(us: int, stream: int, direction: str = "HtoD (Pinned -> Device)", *, blocking: bool = False) -> Launch:
    work = Work(name=f"Memcpy {direction}", duration_ns=us * US, stream=stream, kind=Kind.MEMORY, category="gpu_memcpy")
    return Launch(works=(work,), call="cudaMemcpy" if blocking else "cudaMemcpyAsync", blocking=blocking)


def fill(us: int, stream: int = COMPUTE_STREAM) -> Launch:
    work = Work(name="Memset (Device)", duration_ns=us * US, stream=stream, kind=Kind.MEMORY, category="gpu_memset")
    return Launch(works=(work,), call="cudaMemsetAsync")


def graph(*us: int, stream: int = COMPUTE_STREAM) -> Launch:
    works = tuple(Work(name=f"graph_kernel_{at}", duration_ns=each * US, stream=stream) for at, each in enumerate(us))
    return Launch(works=works, call="cudaGraphLaunch")


OPERATIONS = {
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum"),
    "allgather": ("c10d::_allgather_base_", "nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL"),
    "send": ("c10d::send", "nccl:send 0->1", "ncclDevKernel_SendRecv"),
    "recv": ("c10d::recv_", "nccl:recv 0<-1", "ncclDevKernel_SendRecv"),
    "send_recv": ("c10d::send", "nccl:coalesced", "ncclDevKernel_SendRecv"),
}
"""Operation -> operator, annotation and kernel."""


def collective(group: Group, us: int, stream: int = 40, operation: str = "allreduce") -> Range:
    """A collective of `us` on the wire, within the ranges that torch opens around its launch."""
    operator, annotation, name = OPERATIONS[operation]
    work = Work(
        name=f"{name}(ncclDevKernelArgsStorage<4096ul>)",
        duration_ns=us * US,
        stream=stream,
        kind=Kind.COMMUNICATION,
        group=group,
        operation=operation,
    )
    launch = Launch(works=(work,), call="cudaLaunchKernelExC")
    described = Range(
        name="record_param_comms",
        category="cpu_op",
        body=(Range(name=annotation, body=(launch,)),),
        collective=work,
    )
    return Range(name=operator, category="cpu_op", body=(described,))


def after(event: str, *, stream: int, on: int) -> tuple[Action, ...]:
    """Later work of stream `on` starts after the work that `stream` has now."""
    return RecordEvent(event=event, stream=stream), WaitEvent(event=event, stream=on)


def step(number: int, *body: Action) -> Range:
    return Range(name=f"ProfilerStep#{number}", body=body, meaning=Meaning.STEP)


def annotated(name: str, meaning: Meaning | None, *body: Action) -> Range:
    return Range(name=name, body=body, meaning=meaning)


def forward(*body: Action, name: str = "DistributedDataParallel.forward") -> Range:
    return annotated(name, Meaning.FORWARD, *body)


def operator(
    *body: Action, name: str = "aten::linear", sequence: int | None = None, inputs: Inputs | None = None
) -> Range:
    """An operator. With a sequence number, autograd will run its backward."""
    meaning = None if sequence is None else Meaning.OPERATOR
    return Range(name=name, category="cpu_op", body=body, meaning=meaning, sequence=sequence, inputs=inputs)


def tensors(*shapes: tuple[int, ...], dtype: str) -> Inputs:
    """Contiguous tensors of one dtype, as Kineto names it."""
    strides = tuple(tuple(prod(shape[at + 1 :]) for at in range(len(shape))) for shape in shapes)
    return Inputs(dims=shapes, strides=strides, types=(dtype,) * len(shapes), values=("",) * len(shapes))


def backward(*body: Action) -> OnThread:
    """Backward: autograd's thread works, the calling thread waits."""
    return OnThread(thread=AUTOGRAD, body=body)


def evaluate(node: str, *body: Action, sequence: int = 1) -> Range:
    """Evaluation of a node of the autograd graph."""
    inner = Range(name=node, category="cpu_op", body=body, sequence=sequence, forward_thread=1)
    return Range(
        name=f"autograd::engine::evaluate_function: {node}",
        category="cpu_op",
        body=(inner,),
        meaning=Meaning.BACKWARD,
        sequence=sequence,
        forward_thread=1,
    )


def recompute(*body: Action, sequence: int = 100, forward_thread: int | None = 0) -> Range:
    """A forward operator that runs again within backward."""
    return Range(
        name="aten::conv2d",
        category="cpu_op",
        body=body,
        meaning=Meaning.RECOMPUTE,
        sequence=sequence,
        forward_thread=forward_thread,
    )


def optimizer(*body: Action, name: str = "Optimizer.step#AdamW.step") -> Range:
    return annotated(name, Meaning.OPTIMIZER, *body)


def next_batch(*body: Action) -> Range:
    return annotated("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Meaning.DATA_WAIT, *body)


def item(us: int, stream: int = COMPUTE_STREAM) -> Range:
    """`tensor.item()`: a copy to the host, and the wait for it."""
    body = (copy(us, stream, "DtoH (Device -> Pageable)"), Synchronize(stream=stream))
    return Range(name="aten::_local_scalar_dense", category="cpu_op", body=body)


def same(ranks: int, actions: Sequence[Action]) -> tuple[tuple[Action, ...], ...]:
    return (tuple(actions),) * ranks
