"""The table of traces that were read, and what they lack, in docs/reference/imported-files.md.

    python -m tests.ingest.producers [FOLDER]

`FOLDER` holds traces of real GPUs, which are not in this repository. Virtual GPUs write the others.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from evaluation.written import write_table
from tests.virtual_gpu.kineto import NEW, OLD, write_traces
from tests.virtual_gpu.programs import PROGRAMS
from traincope.ingest import read_kineto
from traincope.ingest.foreign import begin
from traincope.store.job.manifests import RunInfo
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.collectives import UNKNOWN_AXIS, device_collectives
from traincope.timeline.device.traced import TracedGpu, traced
from traincope.timeline.device.works import NO_CALL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "imported-files.md"
TRACES = Path(__file__).parents[3] / "shared" / "traces"
NAME = "producers"
EVENTS = b'"traceEvents"'
HEAD = ("| traces | GPU | versions that it states | lacks |", "|---|---|---|---|")
VERSIONS = re.compile(rb'"(\w*(?:torch|cuda|cupti|hip|rocm|nccl)\w*version)"\s*:\s*"?(\d[\w.+-]*)')
"""Versions before the events."""


def lines(folder: Path) -> Iterator[str]:
    """The table, one line per kind of trace."""
    yield from HEAD
    yield from (line_of(path, folder) for path in sorted(folder.rglob("*.json.gz")))
    with TemporaryDirectory() as made:
        program = next(iter(PROGRAMS.values()))
        for name, style in (("newest torch", NEW), ("torch before 1.12", OLD)):
            first = write_traces(program, Path(made) / name, style)[0]
            yield _line(f"virtual GPU, names of {name}", first)
        path = Path(made) / "cpu.json"
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=0, warmup=0, active=2, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(2):
                torch.nn.Linear(8, 8)(torch.ones(2, 8)).sum().backward()
                profiler.step()
        yield _line(f"torch {torch.__version__.partition('+')[0]} on a CPU", path)


def line_of(path: Path, folder: Path) -> str:
    return _line(str(path.relative_to(folder)), path)


def _line(name: str, path: Path) -> str:
    trace = read_kineto(path)
    gpu = next(iter(traced([trace], rank=trace.info.rank or 0, marker=None)), None)
    device = next(iter(trace.info.devices.values()), "not named")
    shown = "none" if gpu is not None and gpu.works.on_host else device
    stated = [f"{key.decode()} {value.decode()}" for key, value in VERSIONS.findall(begin(path).split(EVENTS)[0])]
    versions, lacks = ", ".join(dict.fromkeys(stated)) or "none", ", ".join(_lacks(trace, gpu)) or "nothing"
    return f"| {name} | {shown} | {versions} | {lacks} |"


def _lacks(trace: Trace, gpu: TracedGpu | None) -> Iterator[str]:
    if gpu is None or not len(gpu.steps.number):
        yield "steps"
    elif gpu.steps.guessed:
        yield "marks of steps"
    if trace.info.world_size is None:
        yield "number of ranks"
    if not trace.info.has_shapes:
        yield "shapes"
    elif not trace.info.has_strides:
        yield "strides"
    if gpu is None or not len(gpu.works) or gpu.works.on_host:
        return
    without = float((gpu.works.call == NO_CALL).mean())
    if without:
        yield f"launches of {100 * without:.1f} % of the works"
    if gpu.works.communication.any():
        yield from _of_collectives(trace, gpu)


def _of_collectives(trace: Trace, gpu: TracedGpu) -> Iterator[str]:
    info = RunInfo(
        id="",
        world_size=trace.info.world_size or 1,
        mesh={},
        started_wall_ns=0,
        versions={},
        command="",
        settings={},
        imported=True,
    )
    found = device_collectives(trace, gpu.works, gpu.steps, rank=trace.info.rank or 0, info=info)
    if any(group.axis == UNKNOWN_AXIS for group in found.groups):
        yield "process groups"
    if not found.num_bytes.all():
        yield f"sizes of {100 * float((found.num_bytes == 0).mean()):.0f} % of the collectives"


if __name__ == "__main__":
    write_table(PAGE, NAME, lines(Path(sys.argv[1]) if len(sys.argv) > 1 else TRACES), by="make producers")
