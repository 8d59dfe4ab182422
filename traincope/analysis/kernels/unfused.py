"""Unfused chains: consecutive pointwise, reduction and normalisation kernels that a compiler could make one kernel.

A chain has at least two kernels in a row on one stream, with no other work of the stream between them, launched by one
thread in one phase and step without a synchronisation in between. These are the kernels that TorchInductor fuses:
pointwise operators, reductions and copies (Ansel et al. 2024, "PyTorch 2", doi:10.1145/3620665.3640366, section 4.2).
Kernels that it generated (`triton_...`) are fused already, and end a chain.

A fused kernel still reads what the first operator reads, and writes what the last one writes. All other bytes of the
chain may stay off memory, unless other work needs them: an upper bound. In time, at most what the chain takes beyond
the remaining bytes at the memory's bandwidth.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from traincope.analysis.kernels.kernel_classes import MEMORY, kernel_class
from traincope.arrays import Bools, Ints
from traincope.events import Phase
from traincope.store.side_tables.traces import HOST_OPERATOR, KERNEL, Trace
from traincope.timeline.device.communication_kernels import bare_name
from traincope.timeline.device.phases import phases
from traincope.timeline.device.products import launching_mover
from traincope.timeline.device.ranges import activity_ranges, innermost
from traincope.timeline.device.traced import TracedGpu
from traincope.timeline.device.works import Works
from traincope.timeline.intervals.painting import ABSENT

FUSIBLE = ("elementwise", "norm")
OF_TORCH = "at::native"
"""Part of the names of torch's own kernels. Its copies are pointwise; those of cuDNN belong to a product."""
GENERATED = "triton_"
MAX_NAMED_CHAINS = 10
UNKNOWN_BYTES = "the bytes of an operator are unknown; profile with record_shapes=True, on a newer torch"
UNKNOWN_BANDWIDTH = "the memory bandwidth of the GPU is unknown; give its full name with traincope import --gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Upper bounds of what fusion saves, summed over chains."""

    num_bytes: int
    """Bytes that fusion keeps off memory at most."""
    ns: int
    """Time that it saves at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """All chains of the same operators in the same phase."""

    operators: tuple[str, ...]
    """The operator that launched each kernel, in order; the kernel's bare name if none did."""
    phase: str
    count: int
    num_kernels: int
    total_ns: int
    """Time of the kernels."""
    saving: Saving | None
    """None with a reason."""
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfused:
    """Chains of all traces: consecutive pointwise, reduction and normalisation kernels that could be one kernel."""

    count: int
    num_kernels: int
    total_ns: int
    in_steps_ns: int
    """Part of `total_ns` in chains within steps."""
    steps_ns: int
    """Time of all steps; 0 without steps."""
    chains: tuple[Chain, ...]
    """The ten with the most time."""
    rated_ns: int
    """Part of `total_ns` in chains whose saving is known."""
    saving: Saving | None
    """Saving of these; None without them."""
    saved_in_steps_ns: int
    """Part of that time in chains within steps."""
    saved_by_phase: Mapping[str, int] = field(default_factory=dict)
    """The same by phase, without zeros."""


def unfused(gpus: Iterable[TracedGpu], bandwidths: Mapping[int, float | None]) -> Unfused | None:
    """Find the chains of all GPUs that give times; None without a kernel.

    `bandwidths`: bytes per second of the memory of each rank's GPU.
    """
    counting = _Counting()
    for gpu in gpus:
        if gpu.problem is None and gpu.works.compute.any():
            counting.add(gpu, bandwidths[gpu.rank])
    return counting.result() if counting.num_gpus else None


@dataclass(slots=True)
class _Sum:
    count: int = 0
    num_kernels: int = 0
    total_ns: int = 0
    saved_bytes: int = 0
    saved_ns: int = 0
    reason: str | None = None


@dataclass(slots=True)
class _Counting:
    """Running sums over traces."""

    num_gpus: int = 0
    sums: dict[tuple[str, tuple[str, ...]], _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    in_steps_ns: int = 0
    steps_ns: int = 0
    rated_ns: int = 0
    saved_bytes: int = 0
    saved_ns: int = 0
    saved_by_phase: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Within steps."""

    def add(self, gpu: TracedGpu, bytes_per_second: float | None) -> None:
        self.num_gpus += 1
        steps = gpu.steps
        self.steps_ns += int((steps.end_ns - steps.start_ns).sum()) if gpu.has_steps else 0
        for run in _runs(gpu, bytes_per_second):
            total = self.sums[run.phase, run.operators]
            total.count += 1
            total.num_kernels += len(run.operators)
            total.total_ns += run.total_ns
            total.reason = total.reason or run.reason
            self.in_steps_ns += run.total_ns if run.in_step else 0
            if run.saving is not None:
                total.saved_bytes += run.saving.num_bytes
                total.saved_ns += run.saving.ns
                self.rated_ns += run.total_ns
                self.saved_bytes += run.saving.num_bytes
                self.saved_ns += run.saving.ns
                self.saved_by_phase[run.phase] += run.saving.ns if run.in_step else 0

    def result(self) -> Unfused:
        chains = sorted(map(_chain, self.sums.items()), key=lambda chain: (-chain.total_ns, chain.operators))
        return Unfused(
            count=sum(chain.count for chain in chains),
            num_kernels=sum(chain.num_kernels for chain in chains),
            total_ns=sum(chain.total_ns for chain in chains),
            in_steps_ns=self.in_steps_ns,
            steps_ns=self.steps_ns,
            chains=tuple(chains[:MAX_NAMED_CHAINS]),
            rated_ns=self.rated_ns,
            saving=Saving(num_bytes=self.saved_bytes, ns=self.saved_ns) if self.rated_ns else None,
            saved_in_steps_ns=sum(self.saved_by_phase.values()),
            saved_by_phase={phase: ns for phase, ns in self.saved_by_phase.items() if ns},
        )


def _chain(entry: tuple[tuple[str, tuple[str, ...]], _Sum]) -> Chain:
    (phase, operators), total = entry
    return Chain(
        operators=operators,
        phase=phase,
        count=total.count,
        num_kernels=total.num_kernels,
        total_ns=total.total_ns,
        saving=None if total.reason else Saving(num_bytes=total.saved_bytes, ns=total.saved_ns),
        reason=total.reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One chain."""

    phase: str
    operators: tuple[str, ...]
    total_ns: int
    in_step: bool
    saving: Saving | None
    reason: str | None


def _runs(gpu: TracedGpu, bytes_per_second: float | None) -> Iterator[_Run]:
    trace, works = gpu.trace, gpu.works
    phase = phases(trace, works)
    kernels, first, length = _chains(gpu, phase)
    rows = works.row[kernels]
    names = _operators(trace, works, kernels)
    mover, step = launching_mover(trace, rows), gpu.steps.at(works.start_ns[kernels])
    duration_ns = np.concatenate([[0], np.cumsum(trace.duration_ns[rows])])
    totals_ns = duration_ns[first + length] - duration_ns[first]
    for begin, size, total_ns in zip(first.tolist(), length.tolist(), totals_ns.tolist(), strict=True):
        run = slice(begin, begin + size)
        saving, reason = _saving(trace, mover[run], total_ns, bytes_per_second)
        yield _Run(
            phase=Phase(phase[kernels[begin]]).name.lower(),
            operators=tuple(names[run]),
            total_ns=total_ns,
            in_step=bool(step[begin] >= 0) and gpu.has_steps,
            saving=saving,
            reason=reason,
        )


def _chains(gpu: TracedGpu, phase: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the kernels of all chains, chain after chain, and where each chain begins, and its number of kernels."""
    trace, works = gpu.trace, gpu.works
    lanes = trace.lane[works.row]
    order = np.lexsort((works.start_ns, lanes))
    fusible = _fusible(trace, works) & (phase != Phase.EVALUATION)
    keys = (fusible, lanes, phase, works.thread, gpu.steps.at(works.start_ns), _syncs(trace, works))
    changes = np.ones(len(order), dtype=bool)
    changes[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    first = np.flatnonzero(changes)
    length = np.diff(first, append=len(order))
    chosen = (length > 1) & fusible[order[first]]
    kept = np.repeat(chosen, length)
    length = length[chosen]
    return order[kept], np.cumsum(length) - length, length


def _fusible(trace: Trace, works: Works) -> Bools:
    named = np.array([_is_fusible(name) for name in trace.names] or [False])
    result: Bools = named[trace.name[works.row]] & trace.of_category(KERNEL)[works.row]
    return result


def _is_fusible(name: str) -> bool:
    kind = kernel_class(name).name
    return not name.startswith(GENERATED) and (kind in FUSIBLE or (kind == MEMORY and OF_TORCH in name))


def _syncs(trace: Trace, works: Works) -> Ints:
    """Return how many synchronisations of any thread began before each launch."""
    begins_ns = np.sort(activity_ranges(trace).only((Phase.SYNC,)).start_ns)
    return np.searchsorted(begins_ns, works.launched_ns)


def _operators(trace: Trace, works: Works, kernels: Ints) -> list[str]:
    """Name the innermost operator around the launch of each kernel."""
    operator = innermost(trace, trace.of_category(HOST_OPERATOR), works, kernels)
    named = np.where(operator == ABSENT, works.row[kernels], operator)
    bare = {code: bare_name(trace.names[code]) for code in np.unique(trace.name[named]).tolist()}
    return [bare[code] for code in trace.name[named].tolist()]


def _saving(
    trace: Trace, movers: Ints, total_ns: int, bytes_per_second: float | None
) -> tuple[Saving | None, str | None]:
    """Bound what fusion saves in one chain. An operator counts once, also if it launched several kernels."""
    if (movers == ABSENT).any():
        return None, UNKNOWN_BYTES
    if bytes_per_second is None:
        return None, UNKNOWN_BANDWIDTH
    operators = list(dict.fromkeys(movers.tolist()))
    left = int(trace.read_bytes[operators[0]] + trace.written_bytes[operators[-1]])
    moved = int((trace.read_bytes[operators] + trace.written_bytes[operators]).sum())
    return Saving(num_bytes=moved - left, ns=max(total_ns - round(1e9 * left / bytes_per_second), 0)), None
