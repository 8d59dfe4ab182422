"""Traces are read back unchanged; a damaged file is refused with a sentence, never a traceback."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tests.timeline.traces import Row, copy, kernel, launch, operator, trace
from traincope.errors import RunDirectoryError, VersionError
from traincope.store.side_tables.traces import UNKNOWN, Trace, TraceCollective, TraceGroup, read_trace, write_trace

START_NS = 1_700_000_000_000_000_000

COLLECTIVE = TraceCollective(
    name="all_to_all", group="3", ranks=(0, 5), group_size=2, in_elements=24, in_split=(8, 16), sequence=77
)


def reduce(start_ns: int) -> Row:
    return replace(kernel("nccl", start_ns, start_ns + 50), collective=COLLECTIVE)


TRACE = trace(
    replace(operator("aten::mm", START_NS, START_NS + 50, flops=1e9, dtype="bfloat16"), sequence=12, forward_thread=1),
    launch(START_NS + 10, 3),
    kernel('gemm "x" <1>', START_NS + 40, START_NS + 90, launch="[4, 1, 1] [128, 1, 1]", of=3),
    reduce(START_NS + 41),
    replace(copy(START_NS + 42, START_NS + 43), num_bytes=4096),
    rank=5,
    step=17,
    lost="it ends before its events do; 7 characters after the last whole event are lost",
    groups=(TraceGroup(name="3", description="tp", size=2, ranks=(0, 5)), TraceGroup(name="4")),
)


def same(first: Trace, second: Trace) -> bool:
    pairs = [(getattr(first, field.name), getattr(second, field.name)) for field in fields(Trace)]
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a == b for a, b in pairs
    )


def refused(file: Path) -> bool:
    """Refused with a sentence that names the file."""
    try:
        read_trace(file)
    except RunDirectoryError as error:
        return str(file) in str(error)
    return False


def test_a_trace_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace-000.npz", TRACE)
    assert same(read_trace(tmp_path / "trace-000.npz"), TRACE)
    assert [path.name for path in tmp_path.iterdir()] == ["trace-000.npz"]


def test_a_trace_without_events_is_valid(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace-000.npz", trace())
    assert len(read_trace(tmp_path / "trace-000.npz")) == 0


def test_a_trace_that_an_older_traincope_stored_opens_with_unknown_columns(tmp_path: Path) -> None:
    file = tmp_path / "trace-000.npz"
    write_trace(file, TRACE)
    columns = dict(np.load(file))
    header = json.loads(columns["header"].tobytes())
    del header["groups"], header["collective"]
    for later in ("sequence", "forward_thread", "num_bytes", "collective"):
        del columns[later]
    np.savez_compressed(file, **columns | {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)})
    older = read_trace(file)
    assert older.start_ns.tolist() == TRACE.start_ns.tolist()
    assert (older.info.groups, older.collectives) == ((), ())
    assert older.forward_thread.tolist() == [0] * len(TRACE)
    for column in (older.sequence, older.num_bytes, older.collective):
        assert column.tolist() == [UNKNOWN] * len(TRACE)


def test_the_ranks_of_a_collective_are_its_own_or_those_of_its_group() -> None:
    assert TRACE.ranks_of(COLLECTIVE) == (0, 5)
    assert TRACE.ranks_of(TraceCollective(group="3")) == (0, 5)
    assert TRACE.ranks_of(TraceCollective(group="9")) == ()


def test_anything_with_numpy_can_read_it(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace-000.npz", TRACE)
    columns = np.load(tmp_path / "trace-000.npz")
    header = json.loads(columns["header"].tobytes())
    assert header["version"] == 1
    assert np.cumsum(columns["gap_ns"]).tolist() == [
        START_NS,
        START_NS + 10,
        START_NS + 40,
        *(START_NS + 41, START_NS + 42),
    ]
    assert [header["name"][code] for code in columns["name"]] == [
        *("aten::mm", "cudaLaunchKernel", 'gemm "x" <1>', "nccl", "Memcpy HtoD"),
    ]


def test_an_event_costs_few_bytes(tmp_path: Path) -> None:
    """Kernels of five names, one every 9 to 12 us: the file has less than 12 bytes for each of 20,000."""
    gaps, lengths = np.random.default_rng(0).integers(9_000, 12_000, (2, 20_000))
    starts = (START_NS + np.cumsum(gaps)).tolist()
    rows = [kernel(f"k{at % 5}", starts[at], starts[at] + int(length)) for at, length in enumerate(lengths)]
    write_trace(tmp_path / "trace-000.npz", trace(*rows))
    assert (tmp_path / "trace-000.npz").stat().st_size / 20_000 < 12


@pytest.mark.parametrize("apart", [61, pytest.param(11, marks=pytest.mark.sweep)])
def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path: Path, apart: int) -> None:
    file = tmp_path / "trace-000.npz"
    write_trace(file, TRACE)
    whole = file.read_bytes()
    for at in range(0, len(whole), apart):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            file.write_bytes(damaged)
            assert refused(file) or same(read_trace(file), TRACE)


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace-000.npz"
    write_trace(file, TRACE)
    columns = dict(np.load(file))
    header = json.loads(columns["header"].tobytes()) | {"version": 2}
    columns["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez_compressed(file, **columns)
    with pytest.raises(VersionError, match="has layout 2, this traincope reads 1"):
        read_trace(file)


@pytest.mark.parametrize("column", ["name", "lane", "category"])
def test_a_position_beyond_its_list_is_damage(column: str, tmp_path: Path) -> None:
    file = tmp_path / "trace-000.npz"
    write_trace(file, TRACE)
    columns = dict(np.load(file))
    columns[column][0] = 9
    np.savez_compressed(file, **columns)
    with pytest.raises(RunDirectoryError, match=f"a {column} outside its list"):
        read_trace(file)


def test_columns_of_different_lengths_are_damage(tmp_path: Path) -> None:
    file = tmp_path / "trace-000.npz"
    write_trace(file, TRACE)
    columns = dict(np.load(file))
    columns["flops"] = columns["flops"][:-1]
    np.savez_compressed(file, **columns)
    with pytest.raises(RunDirectoryError, match="columns of different lengths"):
        read_trace(file)
