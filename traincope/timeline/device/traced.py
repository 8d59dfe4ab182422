"""The GPU of each trace of a rank: its works and its steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.steps import DeviceSteps, device_steps
from traincope.timeline.device.works import Works, gpus, works


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGpu:
    """The GPU with the most kernels in a trace."""

    rank: int
    trace: Trace
    works: Works
    steps: DeviceSteps
    problem: str | None
    """Why it gives no times; None if it does."""

    @property
    def has_steps(self) -> bool:
        return len(self.steps.number) > 0 and bool(self.works.compute.any())


def traced_gpus(traces: Sequence[Trace], *, rank: int, marker: str | None) -> Iterator[TracedGpu]:
    """Yield the GPU of each trace of a rank. Steps that a trace numbers itself follow those of the traces before it."""
    seen: set[int] = set()
    for trace in traces:
        for on_gpu in gpus(trace)[:1]:
            of_gpu = works(trace, on_gpu)
            gpu = TracedGpu(
                rank=rank,
                trace=trace,
                works=of_gpu,
                steps=device_steps(trace, of_gpu, marker=marker),
                problem=None
                if trace.info.lost is None
                else f"{trace.info.source} is cut, so it gives no ledger: lost kernels would seem idle time",
            )
            if gpu.problem is not None or not gpu.has_steps:
                yield gpu
                continue
            if gpu.steps.own_numbers:
                numbers = gpu.steps.number + max(seen, default=0)
                gpu = replace(gpu, steps=replace(gpu.steps, number=numbers))
            if seen & set(gpu.steps.number.tolist()):
                repeated = f"{trace.info.source} repeats steps of rank {rank}, so its own are left out"
                yield replace(gpu, problem=repeated)
                continue
            seen |= set(gpu.steps.number.tolist())
            yield gpu
