"""Kernel traces of an opened run, and a sentence for each unreadable one."""

import gc
import os
import weakref
from pathlib import Path

import pytest

from tests.ingest.writing import complete, kineto
from tests.virtual_gpu.kineto import write_traces
from tests.virtual_gpu.programs import PROGRAMS
from traincope.analysis import analyze
from traincope.ingest import import_traces
from traincope.report.document.document import to_document
from traincope.timeline import open_run, traces


def imported(tmp_path: Path, *steps: int) -> Path:
    """Build a run of rank 0 with kernel windows of these steps, as the recorder writes them."""
    first = tmp_path / "rank0.json"
    first.write_text(kineto([complete("gemm", "1", "2")]))
    import_traces([first], tmp_path / "run")
    rank = tmp_path / "run" / "attempt-000" / "rank-00000"
    (rank / "trace-000.npz").unlink()
    for step in steps:
        (rank / f"kernels-step-{step:08d}.json").write_text(kineto([complete("gemm", str(step), "2")]))
    return rank


def test_windows_of_the_recorder_are_read_with_their_steps(tmp_path: Path) -> None:
    imported(tmp_path, 10, 1000)
    result = open_run(tmp_path / "run").traces
    assert [(trace.info.step, trace.start_ns.tolist()) for trace in result.ranks[0]] == [
        (10, [10_000]),
        (1000, [1_000_000]),
    ]
    assert result.problems == ()


def test_a_cut_or_damaged_trace_does_not_affect_others(tmp_path: Path) -> None:
    rank = imported(tmp_path, 10, 20, 30)
    cut, damaged = rank / "kernels-step-00000010.json", rank / "kernels-step-00000020.json"
    os.truncate(cut, cut.stat().st_size - 20)
    damaged.write_text("<html>")
    result = open_run(tmp_path / "run").traces
    assert [trace.info.step for trace in result.ranks[0]] == [10, 30]
    first, second = result.problems
    assert first.startswith("kernels-step-00000010.json of rank 0 is not whole: it ends before its events do")
    assert second.startswith(f"{damaged} is not a trace of torch's profiler")


def test_a_large_run_is_read_rank_by_rank_with_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_traces(write_traces(PROGRAMS["late peer"], tmp_path / "traces"), tmp_path / "run")
    held = open_run(tmp_path / "run")
    monkeypatch.setattr(traces, "MAX_HELD_EVENTS", 1)
    on_disk = open_run(tmp_path / "run")
    ranks = on_disk.traces.ranks
    assert isinstance(ranks, traces.TracesOnDisk)
    assert [*ranks] == [*held.traces.ranks]
    first = weakref.ref(ranks[0][0].start_ns)
    assert ranks[1][0].info.rank == 1
    gc.collect()
    assert first() is None
    assert to_document(analyze(on_disk)) == to_document(analyze(held))
    assert on_disk.extent_ns == held.extent_ns


def test_a_rank_of_traces_has_its_records_once(tmp_path: Path) -> None:
    import_traces(write_traces(PROGRAMS["late peer"], tmp_path / "traces"), tmp_path / "run")
    timeline = open_run(tmp_path / "run")
    for rank, records in zip(timeline.ranks, timeline.run.ranks, strict=True):
        assert {id(segment.records) for segment in records.segments} <= {*map(id, rank.threads.values())}


def test_only_the_newest_steps_are_read_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = imported(tmp_path, 10, 20, 30)
    size = (rank / "kernels-step-00000010.json").stat().st_size
    monkeypatch.setattr(traces, "MAX_JSON_BYTES", 2 * size)
    result = open_run(tmp_path / "run").traces
    assert [trace.info.step for trace in result.ranks[0]] == [20, 30]
    (problem,) = result.problems
    assert problem.startswith("1 kernel traces are not read: together they exceed 0 MiB of JSON. Read them with ")
    assert problem.endswith("kernels-step-00000010.json")
