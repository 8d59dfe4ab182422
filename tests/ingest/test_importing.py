"""Import of traces to a run directory: which rank each trace is, and no remains of an import that failed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest.writing import complete, kineto
from traincope.errors import DataError, UsageError
from traincope.ingest import find_traces, import_traces, importing
from traincope.ingest.traces import stream
from traincope.store import read_run
from traincope.store.redaction import redact
from traincope.store.side_tables.traces import read_trace
from traincope.timeline import open_run


def trace(path: Path, *, rank: int | None = None, world_size: int = 4, start: str = "100") -> Path:
    job = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
    devices = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(kineto([complete("gemm", start, "5.5", pid=0)], head={**job, **devices}))
    return path


def test_files_without_a_rank_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (0, 2, 10):
        (tmp_path / f"trace_{number}.json").write_text(kineto([complete("gemm", str(number), "1")]))
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in find_traces([tmp_path])] == ["trace_0.json", "trace_2.json", "trace_10.json"]
    assert find_traces(files) == find_traces([tmp_path])
    assert find_traces([files[2], files[0]]) == (files[2], files[0])


def test_traces_that_contain_their_rank_become_a_run(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a.json", rank=2), trace(tmp_path / "b.json", rank=0, start="90")]
    imported = import_traces(files, tmp_path / "run")
    assert [(each.rank, each.rule, each.num_read, each.num_kept, each.lost) for each in imported] == [
        (2, "from the trace", 1, 1, None),
        (0, "from the trace", 1, 1, None),
    ]
    run = read_run(tmp_path / "run")
    assert (run.info.imported, run.info.world_size, run.info.started_wall_ns) == (True, 4, 90_000)
    assert [rank.rank for rank in run.ranks] == [0, 2]
    assert [rank.info.device for rank in run.ranks] == [{"name": "NVIDIA H100 80GB HBM3", "count": 1}] * 2
    assert run.missing == ()
    assert run.problems == ()


def test_imported_events_equal_the_traced_ones(tmp_path: Path) -> None:
    import_traces([trace(tmp_path / "a.json", rank=0)], tmp_path / "run")
    ((kernels,),) = open_run(tmp_path / "run").traces.ranks.values()
    assert kernels.names == ("gemm",)
    assert (kernels.start_ns.tolist(), kernels.duration_ns.tolist()) == ([100_000], [5_500])
    assert (kernels.info.source, kernels.info.rank) == ("a.json", 0)


def test_a_rank_is_from_the_trace_or_a_name_or_its_place(tmp_path: Path) -> None:
    files = [
        trace(tmp_path / "rank7.json", rank=1),
        trace(tmp_path / "rank-5_step_3.json"),
        trace(tmp_path / "rank-00003" / "kernels-step-00000010.json"),
        trace(tmp_path / "x.json"),
        trace(tmp_path / "y.json"),
        trace(tmp_path / "z.json", rank=4, world_size=2),
    ]
    imported = import_traces(files, tmp_path / "run")
    assert [(each.rank, each.rule) for each in imported] == [
        (1, "from the trace"),
        (5, "from the name rank-5_step_3.json"),
        (3, "from the name rank-00003"),
        (0, "from its place in the list: neither file nor name contains it"),
        (2, "from its place in the list: neither file nor name contains it"),
        (4, "from the trace, though it says 2 ranks"),
    ]
    assert read_run(tmp_path / "run").info.world_size == 6


def test_several_traces_of_a_rank_are_kept_and_a_window_keeps_its_step(tmp_path: Path) -> None:
    files = [trace(tmp_path / "rank-0" / f"kernels-step-{step:08d}.json") for step in (10, 20)]
    import_traces(files, tmp_path / "run")
    (rank,) = read_run(tmp_path / "run").ranks
    assert [path.name for path in rank.traces] == ["trace-000.npz", "trace-001.npz"]
    assert [read_trace(path).info.step for path in rank.traces] == [10, 20]


def test_traces_of_one_worker_are_of_one_rank(tmp_path: Path) -> None:
    """As tensorboard_trace_handler names them, with a folder per node."""
    names = ("a_47.100.pt.trace.json", "a_47.200.pt.trace.json", "b_48.150.pt.trace.json", "c.1.trace.json")
    imported = import_traces([trace(tmp_path / node / name) for node in "xy" for name in names], tmp_path / "run")
    assert [(each.source.parent.name, each.source.name[0], each.rank) for each in imported] == [
        *(("x", "a", 0), ("x", "a", 0), ("x", "b", 1), ("x", "c", 2)),
        *(("y", "a", 3), ("y", "a", 3), ("y", "b", 4), ("y", "c", 5)),
    ]
    assert imported[1].rule == "as a_47.100.pt.trace.json before it, of the same process"
    assert [len(rank.traces) for rank in read_run(tmp_path / "run").ranks] == [2, 1, 1, 2, 1, 1]


def test_cycles_of_one_process_are_of_one_rank_whatever_their_names(tmp_path: Path) -> None:
    """Two ranks in containers share a number and a host's name, but their times overlap."""
    files = []
    for name, begin, pid in (("s4", 100, 7), ("s8", 200, 7), ("other", 105, 7), ("elsewhere", 300, 8)):
        calls = [complete("aten::mm", str(begin + start), "5.0", cat="cpu_op", pid=pid) for start in (0, 10)]
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(kineto(calls, head={"host_name": "node1"}))
    imported = import_traces(files, tmp_path / "run")
    assert [each.rank for each in imported] == [0, 0, 1, 2]
    assert imported[1].rule == "as s4.json before it, of the same process"


def test_an_existing_run_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError, match="exists already; choose another directory"):
        import_traces([trace(tmp_path / "a.json")], tmp_path / "run")


def test_an_import_that_fails_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"bad\.json is not a trace"):
        import_traces([trace(tmp_path / "in" / "a.json"), tmp_path / "bad.json"], tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "in"]


def test_a_trace_without_durations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    with pytest.raises(DataError, match="contains no operator, kernel or range of torch's profiler"):
        import_traces([tmp_path / "empty.json"], tmp_path / "run")


def test_an_imported_run_cannot_be_copied_without_names(tmp_path: Path) -> None:
    import_traces([trace(tmp_path / "a.json")], tmp_path / "run")
    with pytest.raises(UsageError, match="it holds only names of kernels"):
        redact(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_two_processes_give_the_same_run_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "WORTH_A_PROCESS", 0)
    files = [trace(tmp_path / "in" / f"{at}.json", start=str(100 + at), rank=at if at % 2 else None) for at in range(7)]
    read: list[float] = []
    runs = []
    for processes in (1, 2):
        run = tmp_path / f"run-{processes}"
        imported = import_traces(files, run, processes=processes, on_read=read.append)
        stored = {path.relative_to(run): path.read_bytes() for path in sorted(run.rglob("*.npz"))}
        runs.append((imported, stored, read_run(run).info.world_size))
    assert runs[0] == runs[1]
    assert sum(read) == pytest.approx(2 * len(files))
    assert [each.rank for each in runs[0][0]] == [0, 1, 2, 3, 4, 5, 6]


def test_the_share_of_a_trace_that_is_read_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK", 100)
    file, read = trace(tmp_path / "a.json"), list[float]()
    import_traces([file], tmp_path / "run", on_read=read.append)
    assert len(read) == -(-file.stat().st_size // 100) + 1
    assert all(share > 0 for share in read[:-1])
    assert sum(read) == pytest.approx(1)


FORKED = """
import sys, threading
from pathlib import Path
from traincope.executors import start_method
from traincope.ingest import import_traces, importing
importing.WORTH_A_PROCESS = 0
files = sorted(map(Path, sys.argv[2:]))
print(start_method(), len(import_traces(files, Path(sys.argv[1]), processes=2)))
other = threading.Event()
threading.Thread(target=other.wait, daemon=True).start()
print(start_method())
"""


def test_a_process_with_one_thread_forks(tmp_path: Path) -> None:
    """It gives the same run: the traces, and no other file."""
    files = [trace(tmp_path / "in" / f"{at}.json", rank=at) for at in range(5)]
    command = [sys.executable, "-c", FORKED, str(tmp_path / "run"), *map(str, files)]
    printed = subprocess.run(command, check=True, timeout=150, capture_output=True, text=True).stdout
    assert printed.split() == ["fork" if sys.platform == "linux" else "spawn", "5", "spawn"]
    stored = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file())
    ranks = [f"attempt-000/rank-{at:05}/{name}" for at in range(5) for name in ("rank.json", "trace-000.npz")]
    assert stored == [*ranks, "run.json"]


def test_an_error_in_another_process_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "WORTH_A_PROCESS", 0)
    files = [trace(tmp_path / "in" / f"{at}.json") for at in range(4)]
    files[0].write_text("{}")
    with pytest.raises(DataError, match=r"0\.json is not a trace"):
        import_traces(files, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_folder_gives_all_its_traces(tmp_path: Path) -> None:
    names = ("b.json", "a.pt.trace.json.gz", "rank-1/kernels-step-00000010.json", "C.JSON")
    files = [trace(tmp_path / "in" / name) for name in names]
    (tmp_path / "in" / "notes.txt").write_text("not a trace")
    other = trace(tmp_path / "other.json")
    assert find_traces([other, tmp_path / "in"]) == (other, files[3], files[1], files[0], files[2])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty contains no trace; the names of traces end in \.json or \.json\.gz"):
        find_traces([tmp_path / "empty"])
