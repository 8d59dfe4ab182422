"""Traces of real GPUs from public test suites, checked to the nanosecond. They are not part of this repository."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from traincope.analysis.kernels.gpu_partition import partition
from traincope.ingest import read_kineto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
EXPECTED = TRACES / "expected.json"

pytestmark = pytest.mark.skipif(
    not EXPECTED.is_file(), reason=f"the public GPU traces and their expected.json are not in {TRACES}"
)


def expected() -> dict[str, Any]:
    return dict(json.loads(EXPECTED.read_text())) if EXPECTED.is_file() else {"absent": None}


@pytest.mark.parametrize("name", expected())
def test_the_partition_of_a_real_trace_equals_the_reference(name: str) -> None:
    reference, trace = expected()[name], read_kineto(TRACES / name)
    (gpu,) = partition(0, trace)
    assert reference == {
        "rank": trace.info.rank,
        "events": trace.info.num_read,
        "gpu_events": {
            "compute": gpu.num_compute,
            "communication": gpu.num_communication,
            "memory": gpu.num_memory,
        },
        **{key: getattr(gpu, key) for key in reference if key.endswith("_ns")},
    }


def test_the_regular_expression_finds_the_events_of_a_json_parser() -> None:
    """Event by event, in the smallest trace with decimal times."""
    file = TRACES / "h100_qwen_single.json.gz"
    with gzip.open(file, "rt") as text:
        document = json.load(text, parse_float=Decimal)
    base = document["baseTimeNanoseconds"]
    kept = [
        event
        for event in document["traceEvents"]
        if event.get("ph") == "X" and event["cat"] not in ("python_function", "Trace")
    ]
    reference = sorted((base + int(event["ts"] * 1000), int(event["dur"] * 1000), event["name"]) for event in kept)
    trace = read_kineto(file)
    names = [trace.names[name] for name in trace.name.tolist()]
    assert sorted(zip(trace.start_ns.tolist(), trace.duration_ns.tolist(), names, strict=True)) == reference
