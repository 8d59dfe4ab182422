"""Trainings with known behaviour: the work of each rank, its times, and the ledger terms they must produce.

Times are ns. A rank's script is one step: work of known length, begun collectives, and stalls for them. The collectives
of DDP, FSDP2 and a tensor-parallel block follow their documented behaviour, repeated here independently.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincope.analysis.verdict.findings import FindingKind as Kind

MS = 1_000_000
LAYERS = 2


class Work(NamedTuple):
    """Work that the ledger must count in this term."""

    term: str
    ns: int


class Begin(NamedTuple):
    """Begin of a collective: its ranks, axis, a name within the step, and its time on the wire."""

    axis: str
    name: str
    ranks: tuple[int, ...]
    link_ns: int


class Finish(NamedTuple):
    """Stall until the collective is complete."""

    axis: str
    name: str


Move = Work | Begin | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Tuples have one entry per rank, or one for all ranks. There are LAYERS equal layers."""

    name: str
    parallel: str
    """ddp, fsdp, tp, async (an all-reduce that overlaps compute), or dp x tp."""
    ranks: int = 2
    forward_ns: tuple[int, ...] = (100 * MS,)
    """Per layer."""
    backward_ns: tuple[int, ...] = (150 * MS,)
    """Per layer."""
    overlapped_ns: tuple[int, ...] = (0,)
    """Compute (a forward) that overlaps an asynchronous all-reduce."""
    late_ns: tuple[int, ...] = (0,)
    """Time that no probe covers, before the first collective of the step."""
    data_ns: tuple[int, ...] = (0,)
    """Data wait of each rank."""
    prefetch: int = 0
    """Processes that load batches ahead. Loading must take less than the rest of a step, and is then hidden."""
    save_ns: tuple[int, ...] = (0,)
    evaluate_ns: tuple[int, ...] = (0,)
    links_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(Axis, operation) -> time on the wire."""
    ends_seen: bool = True
    """True if some rank stalls for the end of a collective of each kind. Otherwise only a latest end is known."""

    straggler: tuple[int, str] | None = None
    """The straggler that must be named, and the term in which its own work is longer. All wait is for it."""
    findings: frozenset[Kind] = frozenset()
    """All findings of the verdict that are in JUDGED."""

    def value_of(self, values_ns: tuple[int, ...], rank: int) -> int:
        return values_ns[rank % len(values_ns)]

    def members(self, axis: str, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's group; for dp x tp, as in a mesh, tp varies fastest."""
        if self.parallel != "dp x tp":
            return tuple(range(self.ranks))
        replica, part = divmod(rank, 2)
        return (2 * replica, 2 * replica + 1) if axis == "tp" else (part, part + 2)

    @property
    def axes(self) -> tuple[str, ...]:
        return {"dp x tp": ("dp", "tp"), "ddp": ("dp",), "async": ("dp",)}.get(self.parallel, (self.parallel,))

    def script(self, rank: int) -> tuple[Move, ...]:
        """One step of a rank."""
        return tuple(_Script(self, rank).moves())


JUDGED = frozenset(
    {
        *(Kind.STRAGGLER, Kind.EXPOSED_WAIT, Kind.EXPOSED_TRANSFER, Kind.EXPOSED_COMMUNICATION),
        *(Kind.DATA_BOUND, Kind.CHECKPOINT_STALL, Kind.UNATTRIBUTED, Kind.PIPELINE_BUBBLE),
    }
)
"""Kinds of findings that are compared."""


@dataclass(frozen=True, slots=True)
class _Script:
    work: Workload
    rank: int

    def moves(self) -> Iterator[Move]:
        work = self.work
        yield Work("data_wait", 0 if work.prefetch else work.value_of(work.data_ns, self.rank))
        yield Work("unattributed", work.value_of(work.late_ns, self.rank))
        yield from {
            "ddp": self._ddp,
            "fsdp": self._fsdp,
            "tp": self._tensor_parallel,
            "async": self._asynchronous,
            "dp x tp": self._replicas,
        }[work.parallel]()
        yield Work("checkpoint_stall", work.value_of(work.save_ns, self.rank))
        yield Work("evaluation", work.value_of(work.evaluate_ns, self.rank))

    @property
    def _forward(self) -> Work:
        return Work("forward", self.work.value_of(self.work.forward_ns, self.rank))

    @property
    def _backward(self) -> Work:
        return Work("backward", self.work.value_of(self.work.backward_ns, self.rank))

    def _begin(self, axis: str, operation: str, name: object) -> Begin:
        link_ns = self.work.links_ns.get((axis, operation), 0)
        return Begin(axis, f"{operation} {name}", self.work.members(axis, self.rank), link_ns)

    def _synchronous(self, axis: str, operation: str, name: object) -> Iterator[Move]:
        """Begin a collective and stall for it."""
        begun = self._begin(axis, operation, name)
        yield begun
        yield Finish(axis, begun.name)

    def _ddp(self) -> Iterator[Move]:
        """One bucket per layer, reduced as soon as it is full. After the backward, a stall for the last one."""
        yield from [self._forward] * LAYERS
        for layer in range(LAYERS):
            yield self._backward
            yield self._begin("dp", "all_reduce", layer)
        yield Finish("dp", f"all_reduce {LAYERS - 1}")

    def _fsdp(self) -> Iterator[Move]:
        """FSDP2 gathers each layer before its use, in backward one layer ahead; on a CPU it waits at once."""
        for layer in range(LAYERS):
            yield from self._synchronous("fsdp", "all_gather", f"forward {layer}")
            yield self._forward
        yield from self._synchronous("fsdp", "all_gather", f"backward {LAYERS - 1}")
        for layer in reversed(range(LAYERS)):
            if layer:
                yield from self._synchronous("fsdp", "all_gather", f"backward {layer - 1}")
            yield self._backward
            yield from self._synchronous("fsdp", "reduce_scatter", layer)

    def _tensor_parallel(self) -> Iterator[Move]:
        """A layer's output is summed at its end, and its gradient at its end of the backward."""
        for layer in range(LAYERS):
            yield self._forward
            yield from self._synchronous("tp", "all_reduce", f"forward {layer}")
        for layer in range(LAYERS):
            yield self._backward
            yield from self._synchronous("tp", "all_reduce", f"backward {layer}")

    def _asynchronous(self) -> Iterator[Move]:
        yield from [self._forward] * LAYERS
        yield from [self._backward] * LAYERS
        yield self._begin("dp", "all_reduce", "gradients")
        yield Work("forward", self.work.value_of(self.work.overlapped_ns, self.rank))
        yield Finish("dp", "all_reduce gradients")

    def _replicas(self) -> Iterator[Move]:
        yield from self._tensor_parallel()
        yield from self._synchronous("dp", "all_reduce", "gradients")


SLOW_LINKS = {
    "ddp": {("dp", "all_reduce"): 60 * MS},
    "fsdp": {("fsdp", "all_gather"): 20 * MS, ("fsdp", "reduce_scatter"): 40 * MS},
    "tp": {("tp", "all_reduce"): 20 * MS},
    "async": {("dp", "all_reduce"): 80 * MS},
    "dp x tp": {("dp", "all_reduce"): 60 * MS, ("tp", "all_reduce"): 20 * MS},
}
LATE, SLOW = frozenset({Kind.STRAGGLER}), frozenset({Kind.EXPOSED_TRANSFER})


def _workload(parallel: str, title: str, *, slow: bool = False, **more: Any) -> Workload:
    links = SLOW_LINKS[parallel] if slow else {}
    return Workload(name=f"{parallel}: {title}", parallel=parallel, links_ns=links, **more)


WORKLOADS = (
    _workload("ddp", "even"),
    _workload("ddp", "slow link", slow=True, findings=SLOW),
    Workload(
        name="ddp: link slower than a layer", parallel="ddp", links_ns={("dp", "all_reduce"): 200 * MS}, findings=SLOW
    ),
    _workload("ddp", "rank 1 late", late_ns=(0, 80 * MS), straggler=(1, "unattributed"), findings=LATE),
    _workload(
        "ddp",
        "slow link, rank 0 late",
        slow=True,
        late_ns=(80 * MS, 0),
        straggler=(0, "unattributed"),
        findings=LATE | SLOW,
    ),
    _workload("ddp", "rank 1 slow", backward_ns=(150 * MS, 190 * MS), straggler=(1, "backward"), findings=LATE),
    _workload("fsdp", "slow link", slow=True, findings=SLOW),
    _workload("fsdp", "rank 0 late", late_ns=(80 * MS, 0), straggler=(0, "unattributed"), findings=LATE),
    _workload("tp", "slow link", slow=True, findings=SLOW),
    _workload(
        "tp",
        "slow link, rank 0 slow",
        slow=True,
        forward_ns=(140 * MS, 100 * MS),
        straggler=(0, "forward"),
        findings=LATE | SLOW,
    ),
    _workload("async", "partly hidden", slow=True, overlapped_ns=(40 * MS, 120 * MS), findings=SLOW),
    _workload("async", "hidden", slow=True, ends_seen=False, overlapped_ns=(120 * MS,)),
    _workload("dp x tp", "slow links", ranks=4, slow=True, findings=SLOW),
    _workload(
        "dp x tp",
        "slow links, rank 3 late",
        ranks=4,
        slow=True,
        late_ns=(0, 0, 0, 80 * MS),
        straggler=(3, "unattributed"),
        findings=LATE | SLOW,
    ),
    _workload("ddp", "slow loaders", data_ns=(80 * MS,), findings=frozenset({Kind.DATA_BOUND})),
    _workload("ddp", "slow loader of rank 1", data_ns=(10 * MS, 90 * MS), straggler=(1, "data_wait"), findings=LATE),
    _workload("fsdp", "rank 0 saves", save_ns=(80 * MS, 0), straggler=(0, "checkpoint_stall"), findings=LATE),
    _workload(
        "ddp",
        "all save and evaluate",
        save_ns=(60 * MS,),
        evaluate_ns=(100 * MS,),
        findings=frozenset({Kind.CHECKPOINT_STALL}),
    ),
)
