"""Perfetto trace: exact times, arrows between ranks, readable by traincope's import."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.runs import event, memory, two_ranks
from tests.ingest.writing import complete, kineto
from tests.timeline.build import Row, group, message, rank, step, timeline
from traincope import open_run
from traincope.errors import RunDirectoryError
from traincope.events import OPEN, Kind
from traincope.ingest import import_traces, read_kineto
from traincope.timeline import Timeline
from traincope_exporters.traces.perfetto import perfetto


def trace_of(timeline: Timeline) -> dict[str, Any]:
    return dict(json.loads("".join(perfetto(timeline))))


def events_of(timeline: Timeline, phase: str) -> list[dict[str, Any]]:
    return [entry for entry in trace_of(timeline)["traceEvents"] if entry["ph"] == phase]


def threads_of(timeline: Timeline) -> dict[tuple[int, int], str]:
    return {
        (entry["pid"], entry["tid"]): entry["args"]["name"]
        for entry in events_of(timeline, "M")
        if entry["name"] == "thread_name"
    }


def test_a_slice_has_the_times_and_details_of_its_event() -> None:
    (gather, _) = [
        entry for entry in events_of(two_ranks(), "X") if entry["cat"] == "collective" and entry["args"]["step"] == 1
    ]
    assert gather["name"] == "all_gather"
    assert (gather["ts"], gather["dur"]) == (1.4, 0.3)
    assert gather["args"] == {
        "step": 1,
        "axis": "tp",
        "sequence": 1,
        "bytes": 4096,
        "wait_ns": 200,
        "transfer_ns": 100,
    }


def test_a_rank_is_a_process_with_its_mesh_coordinates() -> None:
    names = [entry["args"]["name"] for entry in events_of(two_ranks(), "M") if entry["name"] == "process_name"]
    assert names == ["rank 0 tp=0 host-boot", "rank 1 tp=1 host-boot"]
    assert list(threads_of(two_ranks()).values()) == 2 * ["steps", "training thread", "tp"]


def test_an_arrow_joins_the_first_and_last_rank_of_a_collective() -> None:
    arrows = [entry for entry in trace_of(two_ranks())["traceEvents"] if entry["ph"] in "stf"]
    of_step_1 = [(entry["ph"], entry["pid"], entry["ts"]) for entry in arrows if entry["id"] == arrows[0]["id"]]
    assert of_step_1 == [("s", 1, 1.4), ("f", 2, 1.6)]
    assert len(arrows) == 4


def test_an_arrow_joins_sender_and_receiver_even_if_the_receiver_waited() -> None:
    two = group("pp", 0, 1)
    run = timeline(
        rank(0, step(0, 0, 1000), message("send", 500, 700, peer=1), groups=[two]),
        rank(1, step(0, 0, 1000), message("recv", 100, 750, peer=0), groups=[two]),
    )
    arrows = [entry for entry in trace_of(run)["traceEvents"] if entry["ph"] in "stf"]
    assert [(entry["ph"], entry["pid"], entry["ts"]) for entry in arrows] == [("s", 1, 0.5), ("f", 2, 0.5)]


def test_an_open_interval_lasts_to_the_end_and_is_marked() -> None:
    hanging = Row(kind=Kind.SPAN, start_ns=2800, end_ns=OPEN, name="endless", step=2)
    (entry,) = [entry for entry in events_of(two_ranks(hanging, ending=None), "X") if entry["name"] == "endless"]
    assert (entry["ts"], entry["dur"], entry["args"]["open"]) == (2.8, 0.2, True)


def test_memory_is_a_counter_and_an_event_a_mark() -> None:
    run = two_ranks(memory(1990, 1 << 20), event("my event", 1995, at=1))
    (counted,), (marked,) = events_of(run, "C"), events_of(run, "i")
    assert (counted["name"], counted["ts"], counted["args"]) == ("memory, resident", 1.99, {"bytes": 1 << 20})
    assert (marked["name"], marked["ts"], marked["pid"]) == ("my event", 1.995, 1)


def test_nan_is_a_mark_because_json_cannot_hold_it() -> None:
    nan = Row(kind=Kind.SCALAR, start_ns=1990, end_ns=1990, name="loss", step=1, value=0x7FF8000000000000)
    assert [entry["name"] for entry in events_of(two_ranks(nan), "i")] == ["loss is nan"]
    assert events_of(two_ranks(nan), "C") == []


def test_the_export_is_deterministic() -> None:
    assert "".join(perfetto(open_run("sample_runs/demo"))) == "".join(perfetto(open_run("sample_runs/demo")))


def test_the_import_reads_the_demo_back_with_exact_times(tmp_path: Path) -> None:
    timeline = open_run("sample_runs/demo")
    file = tmp_path / "demo.perfetto.json"
    file.write_text("".join(perfetto(timeline)))
    trace = read_kineto(file)
    assert trace.info.lost is None
    sent = Counter(
        (int(record["start_ns"]), int(record["end_ns"] - record["start_ns"]))
        for rank in timeline.ranks
        for record in rank.main
        if record["kind"] in (Kind.STEP, Kind.PHASE, Kind.ACTION, Kind.STALL, Kind.COLLECTIVE)
        and record["end_ns"] != OPEN
        and not record["flags"] & 64
    )
    read = Counter(zip(trace.start_ns.tolist(), trace.duration_ns.tolist(), strict=True))
    assert (sent - read).total() == 0
    assert (read - sent).total() <= 1, "at most one more: the step that was open when the run ended"


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    file = tmp_path / "rank0.json"
    file.write_text(kineto([complete("gemm", "10.001", "40"), complete("ncclX", "50", "30", tid=20)]))
    import_traces([file], tmp_path / "run")
    return tmp_path / "run"


def test_kernel_traces_are_processes_with_their_lanes(imported: Path) -> None:
    run = open_run(imported)
    shown = [(entry["name"], entry["ts"], entry["dur"]) for entry in events_of(run, "X")]
    assert shown == [("gemm", 0, 40), ("ncclX", 39.999, 30)]
    assert [entry["args"]["name"] for entry in events_of(run, "M") if entry["name"] == "process_name"] == [
        "rank 0 kernels"
    ]


def test_an_empty_run_is_refused() -> None:
    with pytest.raises(RunDirectoryError, match="holds no events"):
        "".join(perfetto(timeline()))


@pytest.mark.parametrize("name", ["demo", "demo-3d"])
def test_slices_of_a_track_do_not_cross(name: str) -> None:
    """Otherwise a viewer draws them wrong or drops them. Thread numbers are unique in the trace."""
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for entry in events_of(open_run(f"sample_runs/{name}"), "X"):
        start = round(entry["ts"] * 1000)
        slices.setdefault((entry["pid"], entry["tid"]), []).append((start, start + round(entry["dur"] * 1000)))
    assert len({thread for _, thread in slices}) == len(slices)
    for track_slices in slices.values():
        assert track_slices == sorted(track_slices, key=lambda entry: (entry[0], -entry[1]))
        ends: list[int] = []
        for start, end in track_slices:
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)


def test_arrows_begin_before_they_end_and_lie_in_slices() -> None:
    trace = trace_of(open_run("sample_runs/demo"))["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    arrows: dict[int, list[tuple[float, str]]] = {}
    for entry in trace:
        if entry["ph"] == "X":
            slices.setdefault((entry["pid"], entry["tid"]), []).append(
                (entry["ts"], round(entry["ts"] + entry["dur"], 3))
            )
        elif entry["ph"] in "stf":
            arrows.setdefault(entry["id"], []).append((entry["ts"], entry["ph"]))
            assert any(begin <= entry["ts"] <= end for begin, end in slices[entry["pid"], entry["tid"]])
    assert len(arrows) > 1000
    for points in arrows.values():
        ordered = [phase for _, phase in sorted(points, key=lambda point: (point[0], "stf".index(point[1])))]
        assert ordered == ["s", *(len(points) - 2) * ["t"], "f"]
