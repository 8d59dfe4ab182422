"""Traces of real GPUs from public test suites, to the nanosecond; they are no part of this repository."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from traincope.analysis.gpu_partition import partition
from traincope.ingest import read_kineto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
EXPECTED = TRACES / "expected.json"

pytestmark = pytest.mark.skipif(
    not EXPECTED.is_file(), reason=f"the public GPU traces and their expected.json are not in {TRACES}"
)


def expected() -> dict[str, Any]:
    return dict(json.loads(EXPECTED.read_text())) if EXPECTED.is_file() else {"absent": None}


@pytest.mark.parametrize("name", expected())
def test_the_partition_of_a_real_trace_is_the_one_computed_elsewhere(name: str) -> None:
    wanted, trace = expected()[name], read_kineto(TRACES / name)
    (found,) = partition(0, trace)
    assert wanted == {
        "rank": trace.info.rank,
        "events": trace.info.num_read,
        "gpu_events": {
            "compute": found.num_compute,
            "communication": found.num_communication,
            "memory": found.num_memory,
        },
        **{key: getattr(found, key) for key in wanted if key.endswith("_ns")},
    }


def test_the_pattern_finds_what_a_json_parser_finds() -> None:
    """In the smallest of the traces that has decimals, event by event."""
    file = TRACES / "h100_qwen_single.json.gz"
    with gzip.open(file, "rt") as text:
        whole = json.load(text, parse_float=Decimal)
    base = whole["baseTimeNanoseconds"]
    kept = [
        one for one in whole["traceEvents"] if one.get("ph") == "X" and one["cat"] not in ("python_function", "Trace")
    ]
    wanted = sorted((base + int(one["ts"] * 1000), int(one["dur"] * 1000), one["name"]) for one in kept)
    trace = read_kineto(file)
    names = [trace.names[name] for name in trace.name.tolist()]
    assert sorted(zip(trace.start_ns.tolist(), trace.duration_ns.tolist(), names, strict=True)) == wanted
