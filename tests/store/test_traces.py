"""Traces are read back unchanged; a damaged file is refused with a sentence, never a traceback."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.timeline.traces import kernel, launch, operator, trace
from traincope.errors import RunDirectoryError, VersionError
from traincope.store.traces import Trace, read_trace, write_trace

START_NS = 1_700_000_000_000_000_000

TRACE = trace(
    operator("aten::mm", START_NS, START_NS + 50, flops=1e9, dtype="bfloat16"),
    launch(START_NS + 10, 3),
    kernel('gemm "x" <1>', START_NS + 40, START_NS + 90, launch="[4, 1, 1] [128, 1, 1]", of=3),
    kernel("nccl", START_NS + 41, START_NS + 91),
    rank=5,
    step=17,
    lost="it ends before its events do; 7 characters after the last whole event are lost",
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


def test_anything_with_numpy_can_read_it(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace-000.npz", TRACE)
    columns = np.load(tmp_path / "trace-000.npz")
    header = json.loads(columns["header"].tobytes())
    assert header["version"] == 1
    assert np.cumsum(columns["gap_ns"]).tolist() == [START_NS, START_NS + 10, START_NS + 40, START_NS + 41]
    assert [header["name"][code] for code in columns["name"]] == [
        *("aten::mm", "cudaLaunchKernel", 'gemm "x" <1>', "nccl"),
    ]


def test_an_event_costs_few_bytes(tmp_path: Path) -> None:
    """Kernels of five names, one every 9 to 12 us: the file has less than 12 bytes for each of 20,000."""
    gaps, lengths = np.random.default_rng(0).integers(9_000, 12_000, (2, 20_000))
    starts = (START_NS + np.cumsum(gaps)).tolist()
    rows = [kernel(f"k{at % 5}", starts[at], starts[at] + int(length)) for at, length in enumerate(lengths)]
    write_trace(tmp_path / "trace-000.npz", trace(*rows))
    assert (tmp_path / "trace-000.npz").stat().st_size / 20_000 < 12


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    file = tmp_path / "trace-000.npz"
    write_trace(file, TRACE)
    whole = file.read_bytes()
    for at in range(0, len(whole), 11):
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
