"""Snapshots of torch's allocator, made as torch documents them, against totals by hand and by torch's own reader."""

import gzip
import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda import _memory_viz

import traincope
from traincope.cli.main import main
from traincope.errors import LEFT_OUT, DataError, UsageError
from traincope.ingest.memory_snapshots import find_snapshots, import_snapshots, is_snapshot, read_memory_snapshot
from traincope.report.document.document import to_document
from traincope.store.side_tables.memory_snapshots import DeviceMemory

MIB = 1 << 20
Raw = dict[str, Any]


def frame(filename: str, line: int, name: str) -> Raw:
    return {"filename": filename, "line": line, "name": name}


TORCH = "/venv/lib/python3.11/site-packages/torch"
LINEAR = frame(f"{TORCH}/nn/modules/linear.py", 125, "forward")
MODEL = frame("/job/model.py", 10, "forward")
STEP = [frame(f"{TORCH}/optim/adamw.py", 200, "step"), frame("/job/train.py", 40, "main")]


def block(state: str, size: int, *, asked: int | None = None, frames: list[Raw] | None = None) -> Raw:
    return {"size": size, "requested_size": size if asked is None else asked, "state": state, "frames": frames or []}


def segment(*blocks: Raw, device: int = 0, address: int = 0, expandable: bool = False) -> Raw:
    """A segment of `torch.cuda.memory._snapshot` (torch/cuda/memory.py)."""
    sizes = [each["size"] for each in blocks]
    allocated = sum(each["size"] for each in blocks if each["state"] == "active_allocated")
    return {
        "address": address,
        "total_size": sum(sizes),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "allocated_size": allocated,
        "active_size": allocated + sum(s["size"] for s in blocks if s["state"] == "active_awaiting_free"),
        "blocks": [{**each, "address": address + sum(sizes[:at])} for at, each in enumerate(blocks)],
        "device": device,
        "is_expandable": expandable,
    }


def action(kind: str, size: int, at: int) -> Raw:
    more = {"device_free": 0} if kind == "oom" else {"addr": 1}
    return {"action": kind, "size": size, "stream": 0, "frames": [], "time_us": at, **more}


TWO_GPUS = {
    "segments": [
        segment(
            block("active_allocated", 8 * MIB, asked=8 * MIB - 100, frames=[LINEAR, MODEL]),
            block("inactive", 3 * MIB),
            block("active_allocated", 4 * MIB, frames=STEP),
            block("active_awaiting_free", MIB),
        ),
        segment(block("inactive", 2 * MIB), block("active_allocated", 2 * MIB), address=1 << 40),
        segment(block("inactive", 20 * MIB), device=1),
    ],
    "device_traces": [
        [
            action("alloc", 5 * MIB, 1_000),
            action("free_requested", 6 * MIB, 1_010),
            action("free_completed", 6 * MIB, 1_011),
            action("alloc", 4 * MIB, 1_020),
            action("oom", 64 * MIB, 1_030),
        ],
        [],
    ],
}


def written(path: Path, raw: Raw) -> Path:
    """Write as `torch.cuda.memory._dump_snapshot` does."""
    with path.open("wb") as file:
        pickle.dump(raw, file)
    return path


def command(*words: str | Path) -> object:
    """Run the command line. Returns the exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    return ended.value.code


def devices(path: Path) -> tuple[DeviceMemory, ...]:
    return read_memory_snapshot(path).devices


def test_totals_and_call_sites_of_each_gpu(tmp_path: Path) -> None:
    first, second = devices(written(tmp_path / "snapshot.pickle", TWO_GPUS))
    assert (first.segments, first.reserved_bytes, first.allocated_bytes) == (2, 20 * MIB, 14 * MIB)
    assert (first.awaiting_free_bytes, first.inactive_bytes, first.largest_inactive_bytes) == (MIB, 5 * MIB, 3 * MIB)
    assert first.requested_bytes == 14 * MIB - 100
    assert [(site.place, site.part, site.bytes, site.blocks) for site in first.sites] == [
        ("/job/model.py:10 in forward", "model", 8 * MIB, 1),
        ("/job/train.py:40 in main", "optimizer", 4 * MIB, 1),
        ("", "", 2 * MIB, 1),
    ]
    assert (second.device, second.reserved_bytes, second.allocated_bytes, second.sites) == (1, 20 * MIB, 0, ())


def test_the_history_is_counted_back_from_what_is_allocated_now(tmp_path: Path) -> None:
    """14 MiB at the end after +5, -6 and +4: 11 MiB before the history."""
    first, second = devices(written(tmp_path / "snapshot.pickle", TWO_GPUS))
    assert first.times_us == (0, 0, 10, 20)
    assert first.history_bytes == (11 * MIB, 16 * MIB, 10 * MIB, 14 * MIB)
    assert (first.peak_bytes, first.out_of_memory_bytes) == (16 * MIB, (64 * MIB,))
    assert (second.times_us, second.peak_bytes) == ((), None)


def test_a_history_without_frees_is_not_shown(tmp_path: Path) -> None:
    """15 MiB of allocations, of which only 14 MiB are left, and no free: it was left out of the history."""
    raw = {**TWO_GPUS, "device_traces": [[action("alloc", 15 * MIB, 1)], []]}
    assert devices(written(tmp_path / "snapshot.pickle", raw))[0].history_bytes == ()


BLOCKS = st.lists(
    st.tuples(
        st.sampled_from(["active_allocated", "active_awaiting_free", "inactive"]),
        st.integers(1, 64),
        st.integers(0, 511),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=4))
def test_totals_are_those_of_torch_s_own_reader(tmp_path_factory: pytest.TempPathFactory, made: list[Any]) -> None:
    """torch's `segsum` raises if its own sums do not add up. It counts what awaits its free as free."""
    raw = {
        "segments": [
            segment(
                *(block(state, units * 512, asked=units * 512 - slack) for state, units, slack in blocks),
                address=number << 40,
            )
            for number, blocks in enumerate(made)
        ],
        "device_traces": [],
    }
    (memory,) = devices(written(tmp_path_factory.mktemp("made") / "snapshot.pickle", raw))
    torch_says = dict(line.split(": ", 1) for line in _memory_viz.segsum(raw).splitlines() if ": " in line)
    assert torch_says["segments"] == str(memory.segments)
    assert torch_says["total_reserved"] == str(_memory_viz.Bytes(memory.reserved_bytes))
    assert torch_says["total_allocated"] == str(_memory_viz.Bytes(memory.requested_bytes))
    free = memory.reserved_bytes - memory.requested_bytes
    assert torch_says["total_free"].startswith(str(_memory_viz.Bytes(free)))
    assert sum(map(_memory_viz.calc_active, raw["segments"])) == memory.allocated_bytes


class Exploit:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self._marker}",)


def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker, path = tmp_path / "ran", tmp_path / "snapshot.pickle"
    written(path, {"segments": [Exploit(marker)], "device_traces": []})
    with pytest.raises(DataError, match=r"is refused: it names posix\.system"):
        read_memory_snapshot(path)
    assert command("import", path, "-o", tmp_path / "run") != 0
    assert "do not open this file with pickle.load" in capsys.readouterr().err
    assert not marker.exists()
    assert not (tmp_path / "run").exists()
    pickle.loads(path.read_bytes())  # the exploit is a real one
    assert marker.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(TWO_GPUS)[:-200], "truncated"),
        (pickle.dumps([1]), "not a snapshot"),
        (pickle.dumps(7), "it has no list of segments"),
        (pickle.dumps({"traces": []}), "it has no list of segments"),
        (pickle.dumps({"segments": [{"blocks": [{"size": -5, "state": ""}], "total_size": -5}]}), "a negative size"),
        (pickle.dumps({"segments": [{"blocks": [], "total_size": 7}]}), "the blocks of GPU 0 have 0 bytes"),
    ],
    ids=["cut off", "another pickle", "a number", "no segments", "a negative size", "sizes that contradict each other"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_memory_snapshot(path)


def test_an_imported_snapshot_is_a_run_that_the_report_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = written(tmp_path / "rank3.pickle", TWO_GPUS), tmp_path / "run"
    assert is_snapshot(path)
    assert command("import", path, "-o", run) == 0
    assert "rank 3 (from the name rank3.pickle), 2 GPUs" in capsys.readouterr().out
    document = to_document(traincope.analyze(traincope.open_run(run)))
    (finding,) = document["verdict"]
    assert (finding["kind"], finding["ranks"]) == ("gpu_memory", [3])
    assert finding["evidence"] == (
        "GPU 0 of rank 3 holds 20.0 MiB: 14.0 MiB allocated, 5.0 MiB free in blocks of at most 3.0 MiB; 1.0 MiB await "
        "the end of another stream's work; a request for 64.0 MiB failed; 57.1 % of the allocated bytes come from "
        "/job/model.py:10 in forward"
    )
    assert [each["device"] for each in document["memory_snapshots"] or ()] == [0, 1]
    assert command("report", run) == 0
    printed = capsys.readouterr().out
    assert "8.0 MiB in 1 block: /job/model.py:10 in forward (model)" in printed
    assert command("report", run, "--format", "html", "-o", tmp_path / "report.html") == 0
    assert "/job/model.py:10 in forward" in (tmp_path / "report.html").read_text()
    assert command("report", run, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["memory_snapshots"][0]["peak_bytes"] == 16 * MIB


def test_fragmentation_that_a_failed_request_would_fit_into_has_a_remedy(tmp_path: Path) -> None:
    raw = {**TWO_GPUS, "device_traces": [[action("oom", 4 * MIB, 1)], []]}
    import_snapshots([written(tmp_path / "snapshot.pickle", raw)], tmp_path / "run")
    (finding,) = traincope.analyze(traincope.open_run(tmp_path / "run")).verdict
    assert "expandable_segments:True" in finding.advice


def test_two_snapshots_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, TWO_GPUS) for name in ("rank_1.pickle", "rank-1.pickle")]
    with pytest.raises(UsageError, match="one snapshot per rank"):
        import_snapshots(paths, tmp_path / "run")


def finding_of(folder: Path, raw: Raw) -> Any:
    import_snapshots([written(folder / "snapshot.pickle", raw)], folder / "run")
    (finding,) = traincope.analyze(traincope.open_run(folder / "run")).verdict
    return finding


@pytest.mark.parametrize(
    ("peak", "says", "advises"),
    [
        (10, "the free blocks are the cache of a peak of 10.0 MiB", False),
        (9, "the free blocks are the cache of a peak of 9.0 MiB", False),
        (4, None, True),
        (None, "no history shows whether the free blocks are the cache of a peak or fragments", False),
    ],
)
def test_the_cache_of_a_peak_is_no_fragmentation(
    peak: int | None, says: str | None, advises: bool, tmp_path: Path
) -> None:
    """10 MiB are reserved and 1 MiB is allocated at the end."""
    blocks = [block("active_allocated", MIB), *(block("inactive", MIB) for _ in range(9))]
    more = 0 if peak is None else peak - 1
    trace = [action("alloc", more * MIB, 1), action("free_completed", more * MIB, 2)] if more else []
    finding = finding_of(tmp_path, {"segments": [segment(*blocks)], "device_traces": [trace]})
    assert ("expandable_segments:True" in finding.advice) == advises
    assert ("free blocks are" in finding.evidence) == (says is not None)
    assert says is None or says in finding.evidence


UNWIND = frame("??", 0, "torch::unwind::unwind()")
ENGINE = frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::ReadyQueue> const&)")
VARIABLE = frame("??", 0, "torch::autograd::VariableType::(anonymous namespace)::mm(c10::DispatchKeySet)")
WINDOWS = r"C:\Users\me\venv\Lib\site-packages\torch\optim\adamw.py"


@pytest.mark.parametrize(
    ("frames", "place", "part"),
    [
        ([UNWIND, frame("??", 0, "Bmm::apply()"), ENGINE], "Bmm::apply()", "backward"),
        ([UNWIND, VARIABLE, MODEL], "/job/model.py:10 in forward", "model"),
        ([UNWIND, frame("??", 0, "c10d::Reducer::Reducer()"), MODEL], "/job/model.py:10 in forward", "distributed"),
        ([frame(WINDOWS, 1, "step"), frame(r"C:\job\train.py", 4, "main")], r"C:\job\train.py:4 in main", "optimizer"),
        ([frame("/home/me/torch/train.py", 4, "main")], "/home/me/torch/train.py:4 in main", "model"),
        ([frame("/src/pytorch/torch/nn/linear.py", 4, "f"), MODEL], "/job/model.py:10 in forward", "model"),
        ([UNWIND], "torch::unwind::unwind()", "model"),
    ],
)
def test_the_place_and_the_part_follow_from_python_and_c_frames(
    frames: list[Raw], place: str, part: str, tmp_path: Path
) -> None:
    raw = {"segments": [segment(block("active_allocated", MIB, frames=frames))], "device_traces": [[]]}
    (device,) = read_memory_snapshot(written(tmp_path / "snapshot.pickle", raw)).devices
    (site,) = device.sites
    assert (site.place, site.part) == (place, part)


def test_files_of_another_kind_among_snapshots_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one as well: a dump of the flight recorder."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "dump_0.pickle").write_bytes(pickle.dumps({"entries": [], "pg_config": {}}))
    written(tmp_path / "ranks" / "rank1.pickle", TWO_GPUS)
    whole = written(tmp_path / "ranks" / "rank2.pickle", TWO_GPUS).read_bytes()
    (tmp_path / "ranks" / "rank3.pickle").write_bytes(whole[:-20])
    assert command("import", tmp_path / "ranks", "-o", tmp_path / "run") == LEFT_OUT
    printed = capsys.readouterr()
    assert printed.out.count("2 GPUs") == 2
    assert "left out: 2 files, so the exit code is 14" in printed.out
    assert [line.partition(" is ")[0].rpartition("/")[2] for line in printed.err.splitlines()] == [
        "dump_0.pickle",
        "rank3.pickle",
    ]


def test_a_folder_of_snapshots_is_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in (0, 1):
        written(tmp_path / "ranks" / f"rank{rank}.pickle", TWO_GPUS)
    (tmp_path / "ranks" / "notes.txt").write_text("x")
    assert command("import", tmp_path / "ranks", "-o", tmp_path / "run") == 0
    assert capsys.readouterr().out.count("2 GPUs") == 2
    assert command("report", tmp_path / "run") == 0
    printed = capsys.readouterr().out
    assert "snapshots of memory of 2 of 2 ranks, imported" in printed
    assert "snapshots of memory were imported; nothing else is known" in printed
    (tmp_path / "ranks" / "config.json").write_text("{}")
    assert command("import", tmp_path / "ranks", "-o", tmp_path / "again") == 0
    (tmp_path / "ranks" / "config.json").unlink()
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5, "pid": 1, "tid": 1}
    (trace := tmp_path / "ranks" / "rank0.json").write_text(json.dumps({"traceEvents": [event]}))
    capsys.readouterr()
    assert command("import", tmp_path / "ranks", "-o", tmp_path / "traces") == LEFT_OUT
    left_out = capsys.readouterr().err
    assert all(
        f"rank{rank}.pickle is a snapshot of memory or another pickle, and this an import" in left_out
        for rank in (0, 1)
    )
    assert command("import", trace, tmp_path / "ranks" / "rank1.pickle", "-o", tmp_path / "mixed") == 2
    assert "import traces and snapshots separately" in capsys.readouterr().err


def test_a_snapshot_without_memory_is_refused(tmp_path: Path) -> None:
    """torch writes one on a host without a GPU."""
    with pytest.raises(DataError, match="is empty: torch's allocator had no memory of a GPU"):
        read_memory_snapshot(written(tmp_path / "snapshot.pickle", {"segments": [], "device_traces": [[]]}))


LONG = "/" + "a_long_directory/" * 40 + "train.py"


def test_a_long_path_keeps_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = block("active_allocated", MIB, frames=[frame(LONG, 1234, "step")])
    path = written(tmp_path / "snapshot.pickle", {"segments": [segment(live)], "device_traces": []})
    import_snapshots([path], tmp_path / "run")
    assert command("report", tmp_path / "run") == 0
    assert "".join(capsys.readouterr().out.split()).count(f"{LONG}:1234instep") == 2  # verdict and memory


@pytest.mark.parametrize("broken", [{}, frame(None, None, None), {"filename": "/job/train.py", "line": 3}], ids=str)  # type: ignore[arg-type]
def test_a_frame_without_a_name_costs_no_snapshot(broken: Raw, tmp_path: Path) -> None:
    live = block("active_allocated", MIB, frames=[broken, MODEL])
    path = written(tmp_path / "snapshot.pickle", {"segments": [segment(live)], "device_traces": []})
    (site,) = read_memory_snapshot(path).devices[0].sites
    assert site.place == "/job/model.py:10 in forward"


def test_the_list_of_segments_alone_is_read(tmp_path: Path) -> None:
    """As `torch.cuda.memory_snapshot()` returns it; before torch 2.0 the frames are in a history of the block."""
    live = {**block("active_allocated", MIB), "frames": None, "history": [{"real_size": MIB, "frames": [MODEL]}]}
    path = written(tmp_path / "snapshot.pickle", [segment(live)])
    device = read_memory_snapshot(path).devices[0]
    assert (device.allocated_bytes, device.sites[0].place) == (MIB, "/job/model.py:10 in forward")


@pytest.mark.parametrize("name", ["snapshot.json", "snapshot.pickle.gz", "ordered.pickle"])
def test_snapshots_in_json_and_packed_ones_are_read(name: str, tmp_path: Path) -> None:
    content = {"segments": [segment(block("active_allocated", MIB, frames=[MODEL]))], "device_traces": []}
    written_as = {
        "snapshot.json": json.dumps(content).encode(),
        "snapshot.pickle.gz": gzip.compress(pickle.dumps(content)),
        "ordered.pickle": pickle.dumps(OrderedDict(content)),
    }
    (tmp_path / name).write_bytes(written_as[name])
    assert find_snapshots([tmp_path]) == (tmp_path / name,)
    device = read_memory_snapshot(tmp_path / name).devices[0]
    assert (device.allocated_bytes, device.sites[0].place) == (MIB, "/job/model.py:10 in forward")


def test_without_free_blocks_nothing_is_said_of_a_cache(tmp_path: Path) -> None:
    path = written(tmp_path / "snapshot.pickle", {"segments": [], "device_traces": [[action("alloc", MIB, 1)]]})
    import_snapshots([path], tmp_path / "run")
    (finding,) = traincope.analyze(traincope.open_run(tmp_path / "run")).verdict
    assert "cache" not in finding.evidence
