"""The written traces against real ones, field by field. The real traces are not part of this repository."""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.virtual_gpu.kineto import NEW, OLD, Style, write_traces
from tests.virtual_gpu.programs import PROGRAMS
from traincope.ingest import read_kineto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
REAL = sorted(TRACES.glob("**/*.json.gz"))

Field = tuple[str, ...]
STYLES = {"new": NEW, "old": OLD}


def fields(path: Path) -> set[Field]:
    """Keys of the document, and keys of the events and their arguments by phase and category."""
    content = path.read_bytes()
    document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    if not isinstance(document, dict) or "traceEvents" not in document:
        return set()
    events = document.pop("traceEvents")
    return {*_nested(document, ()), *(each for event in events for each in _event_fields(event))}


def _nested(value: Any, path: Field) -> Iterator[Field]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*path, key)
            yield from _nested(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _nested(inner, path)


def _event_fields(event: Mapping[str, Any]) -> Iterator[Field]:
    place = ("event", event["ph"], event.get("cat", ""))
    for key in event:
        yield (*place, key)
    for key in event.get("args", {}):
        yield (*place, "args", key)


@pytest.fixture(scope="module")
def real() -> set[Field]:
    """The fields of all real traces, whose reading takes seconds."""
    return set().union(*map(fields, REAL))


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason=f"the public GPU traces are not in {TRACES}")
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_every_written_field_is_in_a_real_trace(style: Style, real: set[Field], tmp_path: Path) -> None:
    written = set().union(
        *(
            fields(path)
            for number, program in enumerate(PROGRAMS.values())
            for path in write_traces(program, tmp_path / str(number), style)
        )
    )
    assert written - real == set()


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_only_the_new_style_describes_collectives_on_kernels(style: Style, tmp_path: Path) -> None:
    path, _ = write_traces(PROGRAMS["late peer"], tmp_path, style)
    described = {field[2] for field in fields(path) if field[-1] == "Process Group Name"}
    assert described == ({"cpu_op", "kernel"} if style.described_kernels else {"cpu_op"})
    assert (("distributedInfo", "pg_config") in fields(path)) == style.pg_config


def test_times_are_written_to_the_nanosecond(tmp_path: Path) -> None:
    """Rank 1's clock is 5 s ahead and 0.1 % fast, so its first kernel runs from 3.003 us to 23.023 us of it."""
    _, path = write_traces(PROGRAMS["two hosts with drift"], tmp_path)
    trace = read_kineto(path)
    first = trace.of_category("kernel").tolist().index(True)
    base_ns = 1_711_964_646_000_000_000 + 5_000_000_000
    assert (int(trace.start_ns[first]) - base_ns, int(trace.duration_ns[first])) == (3_003, 20_020)
    assert (trace.info.rank, trace.info.world_size, trace.info.lost) == (1, 2, None)
