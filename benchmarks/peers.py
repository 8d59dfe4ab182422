"""The GPU's time in public traces, by traincope and by HolisticTraceAnalysis (HTA), and the reason for each difference.

    python -m benchmarks.peers --hta PYTHON    # an interpreter that has HolisticTraceAnalysis 0.5.0

A reason is proven: our events, taken by HTA's rules, give HTA's number.

- Launch: HTA leaves out GPU work whose launch is not in the trace, for example work that was queued before. From the
  queue it also leaves out work of calls that it does not list (cudaLaunchCooperativeKernel, CUDA graphs).
- Rounding: of times with decimals, HTA rounds begins up and ends down to whole us. The length of work that is shorter
  than a us can become negative, and HTA's own check then fails.

TraceLens is not on PyPI (`tracelens` there is another project), so it is not compared.
"""

import argparse
import gzip
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.ingest.test_public_traces import EXPECTED, TRACES
from traincope.analysis.kernels.gpu_partition import partition
from traincope.analysis.kernels.queue_length import queue_lengths
from traincope.arrays import Bools, Ints
from traincope.ingest import read_kineto
from traincope.store.side_tables.traces import KERNEL, MEMORY, Trace
from traincope.timeline.device.traced import traced_gpus
from traincope.timeline.device.works import NO_CALL, compute_stream, gpus, is_communication
from traincope.timeline.device.works import works as traced_works
from traincope.timeline.intervals.union import Union

HTA = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=".", include_last_profiler_step=True)
times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
names = {"span": "kernel", "compute": "compute", "idle": "idle", "other": "non_compute"}
overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
series = analysis.get_queue_length_time_series()[0]
series = series[series["stream"] == series["stream"].mode()[0]]
spans, lengths = -series["ts"].diff(-1).iloc[:-1], series["queue_length"].iloc[:-1]
queue = {"queue": (spans * lengths).sum() / spans.sum(), "empty": 100 * spans[lengths <= 0].sum() / spans.sum()}
answers = {name: float(times[f"{theirs}_time(us)"]) for name, theirs in names.items()}
print(json.dumps(answers | {"overlap": float(overlap)} | {name: float(value) for name, value in queue.items()}))
"""
QUESTIONS = {
    "span": "first to last GPU work, us",
    "compute": "compute, us",
    "idle": "idle, us",
    "other": "exposed communication and copies, us",
    "overlap": "communication that compute hides, %",
    "queue": "works that wait for the busiest stream, mean",
    "empty": "time in which none waits, %",
}
TOLERANCE = {"overlap": 0.005}
"""HTA prints the share with two decimals. All others are exact to 0.001."""
LISTED = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"),
    *("hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemcpyAsync", "hipMemsetAsync", "hipMemcpyWithStream"),
)
"""Calls whose works are in HTA's queue."""

Answers = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Works of one GPU. Times are in ns from the trace's base."""

    start_ns: Ints
    end_ns: Ints
    compute: Bools
    communication: Bools
    launched: Bools
    """True if the trace contains the launch."""
    launched_ns: Ints
    listed: Bools
    """True if HTA lists the launching call."""
    stream: Ints

    def answers(self, *, launched_only: bool, rounded: bool) -> Answers:
        """The numbers in us and %, by HTA's rules where asked."""
        starts = -(-self.start_ns // 1_000) * 1_000 if rounded else self.start_ns
        ends = self.end_ns // 1_000 * 1_000 if rounded else self.end_ns
        kept = self.launched if launched_only else np.ones(len(starts), dtype=bool)

        def length_us(chosen: Bools) -> float:
            return _length_ns(starts[chosen & kept], ends[chosen & kept]) / 1e3

        compute, sends = length_us(self.compute), length_us(self.communication)
        busy = length_us(np.ones(len(starts), dtype=bool))
        span = float(ends[kept].max() - starts[kept].min()) / 1e3
        lasting = ends > starts
        computing, sending = length_us(self.compute & lasting), length_us(self.communication & lasting)
        hidden = computing + sending - length_us((self.compute | self.communication) & lasting)
        return {
            "span": span,
            "compute": compute,
            "idle": span - busy,
            "other": busy - compute,
            "overlap": 100 * hidden / sends if sends else 0.0,
            **self._queue(starts, launched_only=launched_only, rounded=rounded),
        }

    def _queue(self, starts: Ints, *, launched_only: bool, rounded: bool) -> Answers:
        """Queue of the stream with the most works, from its first launch to its last start."""
        launches = -(-self.launched_ns // 1_000) * 1_000 if rounded else self.launched_ns
        kept = (self.listed if launched_only else self.launched) & (self.stream == np.bincount(self.stream).argmax())
        begins, ends = launches[kept], np.maximum(starts[kept], launches[kept])
        span = int(ends.max() - begins.min())
        empty = span - Union.of(begins, ends).length_ns
        return {"queue": float((ends - begins).sum()) / span, "empty": 100 * empty / span}


def _length_ns(starts: Ints, ends: Ints) -> int:
    """Length of the union. A work that ends before it begins, alone, has a negative length, as HTA counts it."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.append(True, starts[1:] > ends[:-1])
    last = np.append(first[1:], True)
    return int((ends[last] - starts[first]).sum())


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="the GPU's time by traincope and by HolisticTraceAnalysis")
    parser.add_argument("--hta", metavar="PYTHON", required=True, help="an interpreter that has HolisticTraceAnalysis")
    arguments = parser.parse_args()
    table = Table("trace", "question", "ours", "HTA", "difference", "reason")
    for column in table.columns[2:5]:
        column.justify = "right"
    for name in json.loads(EXPECTED.read_text()):
        for row in _rows(TRACES / name, python=arguments.hta):
            table.add_row(name.partition(".")[0], *row)
    Console(width=150).print(table)


def _rows(path: Path, *, python: str) -> Iterator[tuple[str, ...]]:
    trace = read_kineto(path)
    events, (gpu,) = _events(trace, path), partition(0, trace)
    ours = events.answers(launched_only=False, rounded=False)
    assert ours["compute"] == gpu.compute_ns / 1e3, "the comparison does not use the report's numbers"
    assert round(ours["idle"] * 1e3) == gpu.idle_ns, "the comparison does not use the report's numbers"
    _check_queue(trace, events, base_ns=_base_ns(path))
    theirs = _hta(path, python=python)
    if isinstance(theirs, str) and events.answers(launched_only=True, rounded=True)["other"] < 0:
        theirs = "HTA fails: rounded, copies take negative time"
    for name, question in QUESTIONS.items():
        if isinstance(theirs, str):
            yield question, f"{ours[name]:,.3f}", "none", "", theirs
        else:
            values = f"{ours[name]:,.3f}", f"{theirs[name]:,.2f}", f"{theirs[name] - ours[name]:+,.3f}"
            yield question, *values, _reason(name, events, theirs[name])


def _check_queue(trace: Trace, events: Events, *, base_ns: int) -> None:
    """Compare the report's queue, which is that of the steps, with a sum over works and steps."""
    (gpu,) = traced_gpus([trace], rank=0, marker=None)
    (queue,) = (each for each in queue_lengths([gpu]) if each.computes)
    on_stream = events.stream == compute_stream(trace, gpu.works)
    launched_ns, started_ns = events.launched_ns[on_stream] + base_ns, events.start_ns[on_stream] + base_ns
    steps = list(zip(gpu.steps.start_ns, gpu.steps.end_ns, strict=True))
    waited_ns = [(np.minimum(started_ns, end) - np.maximum(launched_ns, start)).clip(0).sum() for start, end in steps]
    equal = queue.mean is None or not steps or np.isclose(queue.mean, sum(waited_ns) / queue.span_ns, rtol=1e-12)
    assert equal, "the comparison does not use the report's numbers"


def _events(trace: Trace, path: Path) -> Events:
    on_gpu = np.array([lane.process == gpus(trace)[0] for lane in trace.lanes])[trace.lane]
    works = trace.of_category(KERNEL, *MEMORY)
    rows = np.flatnonzero(works & on_gpu)
    of_gpu = traced_works(trace, gpus(trace)[0])
    order = np.argsort(of_gpu.row)
    call = of_gpu.call[order]
    listed = np.isin(np.array(trace.names)[trace.name[call]], LISTED) & (call != NO_CALL)
    calls = np.unique(trace.correlation[~works & (trace.correlation > 0)])
    start_ns = trace.start_ns[rows] - _base_ns(path)
    sends = is_communication(trace)[rows]
    return Events(
        start_ns=start_ns,
        end_ns=start_ns + trace.duration_ns[rows],
        compute=trace.of_category(KERNEL)[rows] & ~sends,
        communication=sends,
        launched=np.isin(trace.correlation[rows], calls),
        launched_ns=of_gpu.launched_ns[order] - _base_ns(path),
        listed=listed,
        stream=trace.lane[rows].astype(np.int64),
    )


def _base_ns(path: Path) -> int:
    """Time that the file's times count from."""
    return int(json.loads(gzip.decompress(path.read_bytes())).get("baseTimeNanoseconds", 0))


def _hta(path: Path, *, python: str) -> Answers | str:
    """HTA's answers, or the last line of its error."""
    done = subprocess.run([python, "-c", HTA, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"HTA fails: {done.stderr.strip().splitlines()[-1]}"
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


RULES = {
    "the same": {"launched_only": False, "rounded": False},
    "rounding": {"launched_only": False, "rounded": True},
    "launch": {"launched_only": True, "rounded": False},
    "launch and rounding": {"launched_only": True, "rounded": True},
}
"""Reason -> HTA's rules under which our events give its number."""


def _reason(name: str, events: Events, theirs: float) -> str:
    tolerance = TOLERANCE.get(name, 1e-3)
    return next(
        (rule for rule, how in RULES.items() if abs(events.answers(**how)[name] - theirs) <= tolerance), "unexplained"
    )


if __name__ == "__main__":
    main()
