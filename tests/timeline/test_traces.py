"""Kernel traces of an opened run, and a sentence for each unreadable one."""

import os
from pathlib import Path

import pytest

from tests.ingest.writing import complete, kineto
from traincope.ingest import import_traces
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


def test_only_the_newest_steps_are_read_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = imported(tmp_path, 10, 20, 30)
    size = (rank / "kernels-step-00000010.json").stat().st_size
    monkeypatch.setattr(traces, "MAX_JSON_BYTES", 2 * size)
    result = open_run(tmp_path / "run").traces
    assert [trace.info.step for trace in result.ranks[0]] == [20, 30]
    (problem,) = result.problems
    assert problem.startswith("1 kernel traces are not read: together they exceed 0 MiB of JSON. Read them with ")
    assert problem.endswith("kernels-step-00000010.json")
