"""Replay of a real trace: the model receives its launches, and predicts when its works start.

The trace is of one A100 of a DDP training, 3 steps with 3,774 works. The model receives the begin and the stream of
each launch, the duration of each work, and the waits of one stream for another. It has two constants for all works: the
time from a launch to its start on an idle stream, and the gap between two works of a busy stream. Both are fitted to
the first third of the works. Each predicted start follows from predicted ones, so errors could add up.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.virtual_gpu.actions import COMPUTE_STREAM, US
from tests.virtual_gpu.machine import Gpu, Queued

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "a100_ddp_rank0_of_2.json.gz"
NCCL_STREAM = 40
STARTS_WITHIN_US = {2: (0.694, 0.870), 5: (0.905, 0.974), 10: (0.927, 0.991)}
"""Tolerance -> shares of the starts that the model predicts to within it: of the works that wait for another work, and
of those that wait for their launch only."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

pytestmark = pytest.mark.skipif(not TRACE.is_file(), reason=f"the public trace {TRACE} is absent")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Launched:
    """A work with its launch; `stream` is None for a wait of the compute stream for NCCL's."""

    at_ns: int
    stream: int | None = None
    start_ns: int = 0
    duration_ns: int = 0


def launches() -> list[Launched]:
    """All works and waits, in the order of their calls."""
    with gzip.open(TRACE, "rt") as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    calls = [event for event in events if event.get("cat") == "cuda_runtime"]
    called_ns = {call["args"]["correlation"]: _ns(call["ts"]) for call in calls}
    works = [
        Launched(
            at_ns=called_ns[event["args"]["correlation"]],
            stream=event["args"]["stream"],
            start_ns=_ns(event["ts"]),
            duration_ns=_ns(event["dur"]),
        )
        for event in events
        if event.get("cat") in ON_DEVICE
    ]
    return sorted([*works, *(Launched(at_ns=at_ns) for at_ns in _waits(events, calls))], key=lambda each: each.at_ns)


def _waits(events: Sequence[dict[str, Any]], calls: Sequence[dict[str, Any]]) -> list[int]:
    """Waits of the compute stream: those outside of collectives. Within, NCCL's stream waits for the compute stream."""
    within = [event for event in events if event.get("name") == "record_param_comms"]
    waits = [call for call in calls if call["name"] == "cudaStreamWaitEvent"]
    return [
        _ns(wait["ts"])
        for wait in waits
        if not any(
            each["tid"] == wait["tid"] and each["ts"] <= wait["ts"] < each["ts"] + each["dur"] for each in within
        )
    ]


def _ns(us: Decimal) -> int:
    return int(us * US)


def fit(works: Sequence[Launched]) -> tuple[int, int]:
    """Median latency of the works that find their stream idle, and median gap of those launched 50 us before."""
    ends: dict[int | None, int] = {}
    latencies, gaps = [], []
    for work in works:
        before_ns = ends.get(work.stream, 0)
        if before_ns <= work.at_ns:
            latencies.append(work.start_ns - work.at_ns)
        elif before_ns > work.at_ns + 50 * US:
            gaps.append(work.start_ns - before_ns)
        ends[work.stream] = work.start_ns + work.duration_ns
    return round(median(latencies)), round(median(gaps))


def replay(order: Sequence[Launched], *, latency_ns: int, gap_ns: int) -> list[tuple[Launched, Queued]]:
    gpu = Gpu(latency_ns=latency_ns, gap_ns=gap_ns)
    queued = []
    for each in order:
        if each.stream is None:
            gpu.wait(COMPUTE_STREAM, gpu.record(each.at_ns, NCCL_STREAM))
            continue
        if each.stream == NCCL_STREAM:
            gpu.wait(NCCL_STREAM, gpu.record(each.at_ns, COMPUTE_STREAM))
        queued.append((each, gpu.launch(each.at_ns, each.stream, each.duration_ns)))
    return queued


def shares(predicted: Sequence[tuple[Launched, Queued]], tolerance_ns: int) -> tuple[float, float]:
    """Shares of the starts within the tolerance: of the works that wait for another, and of those that do not."""
    met: tuple[list[bool], list[bool]] = [], []
    for work, queued in predicted:
        assert queued.start_ns is not None
        met[queued.start_ns == queued.ready_ns].append(abs(queued.start_ns - work.start_ns) <= tolerance_ns)
    waiting, idle = (round(sum(each) / len(each), 3) for each in met)
    return waiting, idle


def test_the_model_predicts_the_starts_of_a_real_trace() -> None:
    """Shares of the other two thirds. Idle works only test the constant latency, waiting ones test the streams."""
    order = launches()
    works = [each for each in order if each.stream is not None]
    num_fitted = len(works) // 3
    latency_ns, gap_ns = fit(works[:num_fitted])
    predicted = replay(order, latency_ns=latency_ns, gap_ns=gap_ns)[num_fitted:]
    assert (len(works), latency_ns, gap_ns) == (3_774, 11_602, 1_152)
    assert {us: shares(predicted, us * US) for us in (2, 5, 10)} == {
        2: (0.694, 0.87),
        5: (0.905, 0.974),
        10: (0.927, 0.991),
    }
