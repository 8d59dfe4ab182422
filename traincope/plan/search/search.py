"""The fastest layouts of a model on a cluster, among all of `space`, by the formulas of `layout`."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from traincope.errors import UsageError
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout, Place
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.memory import RankMemory, memory
from traincope.plan.layout.prediction import Prediction, exact_bubble, fits, least_bubble, predict
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.clusters import Cluster
from traincope.plan.search.space import Rejections, Wanted, layouts, meshes
from traincope.units import size

Report = Callable[[str], None]
"""Called with what the search does now, once per mesh and per layout that fits."""

FLASH = ActivationPolicy(flash=True, dropout=False)
"""Activations of current models: flash attention and no dropout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout that fits, with its prediction."""

    layout: Layout
    recompute: Recompute
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a search."""

    ranked: tuple[Candidate, ...]
    """Fastest layouts, fastest first. Empty if no layout fits."""
    num_fitting: int
    """Layouts that fit, those of `ranked` included."""
    rejected: Mapping[str, int]
    """Reason -> number of layouts, largest first; of the layouts that were tried first, without offload."""
    smallest: tuple[Layout, Recompute, int] | None
    """Layout that needs least memory among those that do not fit, with its recomputation and its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitting:
    layout: Layout
    policy: ActivationPolicy
    held: tuple[RankMemory, ...]


class _Bound(Enum):
    """How far a layout is predicted."""

    COMPUTE = 0
    """A lower bound: without communication, and with the least bubble."""
    BUBBLE = 1
    """A lower bound: with the least bubble."""
    EXACT = 2


class _Smallest:
    """Layout that needs least memory of those that do not fit."""

    def __init__(self) -> None:
        self.found: tuple[Layout, Recompute, int] | None = None

    def see(self, layout: Layout, recompute: Recompute, needed: int) -> None:
        if self.found is None or needed < self.found[2]:
            self.found = layout, recompute, needed


def search(
    shape: Transformer,
    *,
    cluster: Cluster,
    batch: int,
    precision: Precision,
    wanted: Wanted,
    best: int = 10,
    policies: tuple[ActivationPolicy, ...] = (FLASH, FLASH.with_recompute(Recompute.FULL)),
    report: Report = lambda _: None,
) -> Found:
    """Find the `best` fastest layouts for steps of `batch` sequences.

    `policies`: from the one that keeps most; each layout takes the first that fits. Raises UsageError for a batch below
    1.
    """
    if batch < 1:
        raise UsageError(f"batch is {batch}; it must be at least 1")
    machine, smallest = cluster.machine(), _Smallest()
    rejected: list[Rejections] = []
    fitting: list[_Fitting] = []
    domain = cluster.domain_ranks
    for each in _with_offload(wanted, offers=machine.host is not None):
        rejections = Rejections()
        rejected.append(rejections)
        for mesh in meshes(shape, ranks=cluster.gpus, domain=domain, wanted=each, rejections=rejections):
            report(f"{len(fitting):,} layouts fit so far")
            for series in layouts(shape, mesh, batch=batch, wanted=each, rejections=rejections, domain=domain):
                fitting += _fitting(shape, series, machine, precision, policies, rejections, smallest)
        if fitting:
            break
    return Found(
        ranked=tuple(_fastest(shape, fitting, machine=machine, precision=precision, best=best, report=report)),
        num_fitting=len(fitting),
        rejected=rejected[0].most_common,
        smallest=smallest.found,
    )


def _with_offload(wanted: Wanted, *, offers: bool) -> Iterator[Wanted]:
    """Yield what is wanted, then with state on the CPU, then on disks. `offers`: the host is known."""
    yield wanted
    if wanted.offload is None and offers:
        for place in (Place.CPU, Place.NVME):
            yield replace(wanted, offload=place)


def _fitting(
    shape: Transformer,
    series: tuple[Layout, ...],
    machine: Machine,
    precision: Precision,
    policies: tuple[ActivationPolicy, ...],
    rejections: Rejections,
    smallest: _Smallest,
) -> Iterator[_Fitting]:
    """Yield the layouts of a series that fit, each with the first policy that fits."""
    held: tuple[RankMemory, ...] | None = None
    for number, layout in enumerate(series):
        for policy in policies:
            held = memory(
                shape,
                layout=layout,
                precision=precision,
                policy=policy,
                workspace_bytes=machine.workspace_bytes,
                known=held,
            )
            needed = max(rank.total for rank in held)
            if all(fits(rank, machine) for rank in held):
                yield _Fitting(layout=layout, policy=policy, held=held)
                break
            if needed > machine.memory_bytes:
                smallest.see(layout, policy.recompute, needed)
        else:
            reason = f"a rank needs more than the {size(machine.memory_bytes)} that it may fill"
            if needed <= machine.memory_bytes:
                reason = "offloaded state needs more than a rank's share of the CPU's memory or of the disks"
            rejections.add(reason, len(series) - number)
            return


def _fastest(
    shape: Transformer,
    fitting: list[_Fitting],
    *,
    machine: Machine,
    precision: Precision,
    best: int,
    report: Report,
) -> Iterator[Candidate]:
    """Yield the fastest layouts, fastest first; of equally fast ones the first of `fitting`.

    Communication and timetables take long to compute, so each layout starts without communication and with a lower
    bound of its bubble. The one that looks fastest gets its communication, then its exact bubble, until those that look
    fastest are exact.
    """
    heap: list[tuple[float, int, _Bound, Prediction]] = []

    def push(number: int, bound: _Bound, predicted: Prediction) -> None:
        heapq.heappush(heap, (predicted.expected_seconds, number, bound, predicted))

    def predicted(number: int, *, communicates: bool) -> Prediction:
        each = fitting[number]
        return predict(
            shape,
            layout=each.layout,
            precision=precision,
            policy=each.policy,
            machine=machine,
            causal_half=each.policy.flash,
            held=each.held,
            bubble=least_bubble(shape, layout=each.layout),
            communicates=communicates,
        )

    for number in range(len(fitting)):
        report(f"{number:,} of {len(fitting):,} layouts that fit are predicted")
        push(number, _Bound.COMPUTE, predicted(number, communicates=False))
    while heap and best:
        _, number, bound, found = heapq.heappop(heap)
        each = fitting[number]
        if bound is _Bound.COMPUTE:
            push(number, _Bound.BUBBLE, predicted(number, communicates=True))
        elif bound is _Bound.BUBBLE:
            push(number, _Bound.EXACT, replace(found, bubble_ratio=exact_bubble(shape, layout=each.layout)))
        else:
            best -= 1
            yield Candidate(layout=each.layout, recompute=each.policy.recompute, prediction=found)
