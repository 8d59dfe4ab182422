"""Traces become a run directory that opens; which rank each is; and nothing is left of an import that failed."""

from pathlib import Path

import pytest

from tests.ingest.writing import complete, kineto
from traincope.errors import DataError, UsageError
from traincope.ingest import import_traces
from traincope.store import read_run
from traincope.store.redaction import redact
from traincope.store.traces import read_trace
from traincope.timeline import open_run


def trace(path: Path, *, rank: int | None = None, world_size: int = 4, start: str = "100") -> Path:
    job = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
    devices = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(kineto([complete("gemm", start, "5.5", pid=0)], head={**job, **devices}))
    return path


def test_the_ranks_that_traces_tell_are_a_run(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a.json", rank=2), trace(tmp_path / "b.json", rank=0, start="90")]
    done = import_traces(files, tmp_path / "run")
    assert [(one.rank, one.rule, one.num_read, one.num_kept, one.lost) for one in done] == [
        (2, "told by the trace", 1, 1, None),
        (0, "told by the trace", 1, 1, None),
    ]
    run = read_run(tmp_path / "run")
    assert (run.info.imported, run.info.world_size, run.info.started_wall_ns) == (True, 4, 90_000)
    assert [rank.rank for rank in run.ranks] == [0, 2]
    assert [rank.info.device for rank in run.ranks] == [{"name": "NVIDIA H100 80GB HBM3", "count": 1}] * 2
    assert run.missing == ()
    assert run.problems == ()


def test_what_is_imported_is_what_was_traced(tmp_path: Path) -> None:
    import_traces([trace(tmp_path / "a.json", rank=0)], tmp_path / "run")
    ((found,),) = open_run(tmp_path / "run").traces.ranks.values()
    assert found.names == ("gemm",)
    assert (found.start_ns.tolist(), found.duration_ns.tolist()) == ([100_000], [5_500])
    assert (found.info.source, found.info.rank) == ("a.json", 0)


def test_a_rank_is_told_by_the_trace_else_by_names_else_by_its_place(tmp_path: Path) -> None:
    files = [
        trace(tmp_path / "rank7.json", rank=1),
        trace(tmp_path / "rank-5_step_3.json"),
        trace(tmp_path / "rank-00003" / "kernels-step-00000010.json"),
        trace(tmp_path / "x.json"),
        trace(tmp_path / "y.json"),
    ]
    done = import_traces(files, tmp_path / "run")
    assert [(one.rank, one.rule) for one in done] == [
        (1, "told by the trace"),
        (5, "by the name rank-5_step_3.json"),
        (3, "by the name rank-00003"),
        (0, "by its place: nothing tells it"),
        (2, "by its place: nothing tells it"),
    ]
    assert read_run(tmp_path / "run").info.world_size == 6


def test_several_traces_of_a_rank_lie_side_by_side_and_a_window_keeps_its_step(tmp_path: Path) -> None:
    files = [trace(tmp_path / "rank-0" / f"kernels-step-{step:08d}.json") for step in (10, 20)]
    import_traces(files, tmp_path / "run")
    (rank,) = read_run(tmp_path / "run").ranks
    assert [path.name for path in rank.traces] == ["trace-000.npz", "trace-001.npz"]
    assert [read_trace(path).info.step for path in rank.traces] == [10, 20]


def test_a_run_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError, match="is there already; give another place"):
        import_traces([trace(tmp_path / "a.json")], tmp_path / "run")


def test_of_an_import_that_fails_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"bad\.json is no trace"):
        import_traces([trace(tmp_path / "in" / "a.json"), tmp_path / "bad.json"], tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "in"]


def test_a_trace_without_any_event_that_lasts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    with pytest.raises(DataError, match="holds no event with a duration"):
        import_traces([tmp_path / "empty.json"], tmp_path / "run")


def test_a_copy_without_names_is_refused_for_nothing_would_be_left(tmp_path: Path) -> None:
    import_traces([trace(tmp_path / "a.json")], tmp_path / "run")
    with pytest.raises(UsageError, match="names of kernels are all it holds"):
        redact(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
