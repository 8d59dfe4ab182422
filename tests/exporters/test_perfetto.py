"""The trace: every record at its ns, ranks that met tied together, and readable by traincope's own import."""

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
from traincope_exporters.perfetto import perfetto


def trace_of(timeline: Timeline) -> dict[str, Any]:
    return dict(json.loads("".join(perfetto(timeline))))


def events_of(timeline: Timeline, phase: str) -> list[dict[str, Any]]:
    return [one for one in trace_of(timeline)["traceEvents"] if one["ph"] == phase]


def threads_of(timeline: Timeline) -> dict[tuple[int, int], str]:
    return {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events_of(timeline, "M")
        if one["name"] == "thread_name"
    }


def test_an_interval_is_where_it_was_with_what_is_known_of_it() -> None:
    (gather, _) = [
        one for one in events_of(two_ranks(), "X") if one["cat"] == "collective" and one["args"]["step"] == 1
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


def test_a_rank_is_a_process_with_its_place_on_the_mesh() -> None:
    names = [one["args"]["name"] for one in events_of(two_ranks(), "M") if one["name"] == "process_name"]
    assert names == ["rank 0 tp=0 host-boot", "rank 1 tp=1 host-boot"]
    assert list(threads_of(two_ranks()).values()) == 2 * ["steps", "training thread", "tp"]


def test_an_arrow_goes_from_the_first_rank_of_a_collective_to_the_last() -> None:
    arrows = [one for one in trace_of(two_ranks())["traceEvents"] if one["ph"] in "stf"]
    of_step_1 = [(one["ph"], one["pid"], one["ts"]) for one in arrows if one["id"] == arrows[0]["id"]]
    assert of_step_1 == [("s", 1, 1.4), ("f", 2, 1.6)]
    assert len(arrows) == 4


def test_a_message_goes_from_its_sender_to_its_receiver_who_may_have_looked_for_it_before() -> None:
    two = group("pp", 0, 1)
    run = timeline(
        rank(0, step(0, 0, 1000), message("send", 500, 700, peer=1), groups=[two]),
        rank(1, step(0, 0, 1000), message("recv", 100, 750, peer=0), groups=[two]),
    )
    arrows = [one for one in trace_of(run)["traceEvents"] if one["ph"] in "stf"]
    assert [(one["ph"], one["pid"], one["ts"]) for one in arrows] == [("s", 1, 0.5), ("f", 2, 0.5)]


def test_what_never_ended_is_drawn_to_the_end_and_says_so() -> None:
    hanging = Row(kind=Kind.SPAN, start_ns=2800, end_ns=OPEN, name="endless", step=2)
    (one,) = [one for one in events_of(two_ranks(hanging, ending=None), "X") if one["name"] == "endless"]
    assert (one["ts"], one["dur"], one["args"]["open"]) == (2.8, 0.2, True)


def test_memory_is_a_counter_and_an_event_a_mark() -> None:
    run = two_ranks(memory(1990, 1 << 20), event("my event", 1995, at=1))
    (counted,), (marked,) = events_of(run, "C"), events_of(run, "i")
    assert (counted["name"], counted["ts"], counted["args"]) == ("memory, resident", 1.99, {"bytes": 1 << 20})
    assert (marked["name"], marked["ts"], marked["pid"]) == ("my event", 1.995, 1)


def test_a_value_that_is_no_number_is_a_mark_for_json_has_no_such_numbers() -> None:
    nan = Row(kind=Kind.SCALAR, start_ns=1990, end_ns=1990, name="loss", step=1, value=0x7FF8000000000000)
    assert [one["name"] for one in events_of(two_ranks(nan), "i")] == ["loss is nan"]
    assert events_of(two_ranks(nan), "C") == []


def test_the_same_run_is_the_same_text() -> None:
    assert "".join(perfetto(open_run("sample_runs/demo"))) == "".join(perfetto(open_run("sample_runs/demo")))


def test_what_the_demo_says_is_read_back_to_the_ns_by_the_import_of_traces(tmp_path: Path) -> None:
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
    assert (read - sent).total() <= 1, "beside them at most the step that was begun when the run ended"


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    file = tmp_path / "rank0.json"
    file.write_text(kineto([complete("gemm", "10.001", "40"), complete("ncclX", "50", "30", tid=20)]))
    import_traces([file], tmp_path / "run")
    return tmp_path / "run"


def test_kernel_traces_are_processes_with_their_lanes(imported: Path) -> None:
    run = open_run(imported)
    shown = [(one["name"], one["ts"], one["dur"]) for one in events_of(run, "X")]
    assert shown == [("gemm", 0, 40), ("ncclX", 39.999, 30)]
    assert [one["args"]["name"] for one in events_of(run, "M") if one["name"] == "process_name"] == ["rank 0 kernels"]


def test_a_run_with_nothing_in_it_is_refused_in_words() -> None:
    with pytest.raises(RunDirectoryError, match="holds nothing with a time"):
        "".join(perfetto(timeline()))


@pytest.mark.parametrize("name", ["demo", "demo-3d"])
def test_on_every_track_slices_are_inside_one_another_or_apart(name: str) -> None:
    """Else a viewer draws them wrong or drops them. Each thread's number is the only one of the trace."""
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one in events_of(open_run(f"sample_runs/{name}"), "X"):
        start = round(one["ts"] * 1000)
        slices.setdefault((one["pid"], one["tid"]), []).append((start, start + round(one["dur"] * 1000)))
    assert len({thread for _, thread in slices}) == len(slices)
    for own in slices.values():
        assert own == sorted(own, key=lambda one: (one[0], -one[1]))
        ends: list[int] = []
        for start, end in own:
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)


def test_arrows_begin_before_they_end_and_lie_in_slices() -> None:
    trace = trace_of(open_run("sample_runs/demo"))["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    arrows: dict[int, list[tuple[float, str]]] = {}
    for one in trace:
        if one["ph"] == "X":
            slices.setdefault((one["pid"], one["tid"]), []).append((one["ts"], round(one["ts"] + one["dur"], 3)))
        elif one["ph"] in "stf":
            arrows.setdefault(one["id"], []).append((one["ts"], one["ph"]))
            assert any(begin <= one["ts"] <= end for begin, end in slices[one["pid"], one["tid"]])
    assert len(arrows) > 1000
    for points in arrows.values():
        ordered = [phase for _, phase in sorted(points, key=lambda point: (point[0], "stf".index(point[1])))]
        assert ordered == ["s", *(len(points) - 2) * ["t"], "f"]
