"""Perfetto's own format, one file per host: read by Perfetto's descriptors, and equal to the JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from tests.exporters.runs import event, memory, two_ranks
from tests.timeline.build import Row, clock, group, message, rank, step, timeline
from traincope import open_run
from traincope.errors import RunDirectoryError
from traincope.events import OPEN, Kind
from traincope.timeline import Timeline
from traincope_exporters.traces.perfetto import perfetto as as_json
from traincope_exporters.traces.perfetto_hosts import MANIFEST, write_hosts

NAN = Row(kind=Kind.SCALAR, start_ns=1990, end_ns=1990, name="loss", step=1, value=0x7FF8000000000000)
Type = perfetto.TrackEvent.Type


def files_of(run: Timeline, folder: Path) -> list[Any]:
    """The parsed traces, in the order of their numbers. No field may be unknown to Perfetto."""
    write_hosts(run, folder)
    traces = [perfetto.Trace.FromString(path.read_bytes()) for path in sorted(folder.glob("*.pftrace"))]
    for trace in traces:
        assert trace.IsInitialized()
        assert [field for message in messages(trace) for field in UnknownFieldSet(message)] == []
    return traces


def messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from messages(inner)


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text())["perfetto_manifest"])


def names(trace: Any) -> dict[int, str]:
    """Track -> its name, and that of its process before it."""
    tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet if described(packet)}
    processes = {uuid: track.process.process_name for uuid, track in tracks.items() if track.HasField("process")}
    own = {uuid: track.thread.thread_name or track.name for uuid, track in tracks.items()}
    return {uuid: "/".join(filter(None, (processes[uuid >> 32 << 32], own[uuid]))) for uuid in tracks}


def described(packet: Any) -> bool:
    return bool(packet.HasField("track_descriptor"))


def slices(trace: Any) -> list[tuple[str, str, int, int, dict[str, Any]]]:
    """(Track, name, start, length, arguments): each end closes the innermost slice of its track."""
    found, stacks, tracks = [], {}, names(trace)
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    for packet in sorted(events, key=lambda packet: packet.timestamp):
        track = packet.track_event
        if track.type == Type.TYPE_SLICE_BEGIN:
            args = {note.name: getattr(note, note.WhichOneof("value")) for note in track.debug_annotations}
            stacks.setdefault(track.track_uuid, []).append((track.name, packet.timestamp, args))
        elif track.type == Type.TYPE_SLICE_END:
            name, start, args = stacks[track.track_uuid].pop()
            found.append((tracks[track.track_uuid], name, start, packet.timestamp - start, args))
    assert not any(stacks.values())
    return sorted(found, key=str)


def slices_of_json(run: Timeline) -> list[tuple[str, str, int, int, dict[str, Any]]]:
    trace = json.loads("".join(as_json(run)))
    called = {
        (entry["name"], entry["pid"], entry.get("tid")): entry["args"]["name"]
        for entry in trace["traceEvents"]
        if entry["ph"] == "M" and "name" in entry["args"]
    }
    return sorted(
        (
            (
                f"{called['process_name', entry['pid'], None]}/{called['thread_name', entry['pid'], entry['tid']]}",
                entry["name"],
                trace["baseTimeNanoseconds"] + round(entry["ts"] * 1000),
                round(entry["dur"] * 1000),
                entry["args"],
            )
            for entry in trace["traceEvents"]
            if entry["ph"] == "X"
        ),
        key=str,
    )


@pytest.mark.slow
@pytest.mark.parametrize("run", [two_ranks(), open_run("sample_runs/demo")], ids=["by hand", "demo"])
def test_the_slices_are_those_of_the_json(run: Timeline, tmp_path: Path) -> None:
    (trace,) = files_of(run, tmp_path)
    assert slices(trace) == slices_of_json(run)


def test_counters_and_marks_are_on_tracks_of_their_process(tmp_path: Path) -> None:
    run = two_ranks(memory(1990, 1 << 20), event("my event", 1995, at=1), NAN)
    (trace,) = files_of(run, tmp_path)
    shown = [
        (names(trace)[packet.track_event.track_uuid], packet.timestamp, packet.track_event)
        for packet in trace.packet
        if packet.track_event.type in (Type.TYPE_COUNTER, Type.TYPE_INSTANT) and not packet.track_event.categories
    ]
    values = [(track, at, entry.double_counter_value or entry.name) for track, at, entry in shown]
    assert values == [
        ("rank 0 tp=0 host-boot/memory, resident", 1990, 1 << 20),
        ("rank 0 tp=0 host-boot", 1995, "my event"),
        ("rank 0 tp=0 host-boot", 1990, "loss is nan"),
    ]


def test_an_arrow_joins_two_marks_by_its_number(tmp_path: Path) -> None:
    two = group("pp", 0, 1)
    run = timeline(
        rank(0, step(0, 0, 1000), message("send", 500, 700, peer=1), groups=[two]),
        rank(1, step(0, 0, 1000), message("recv", 100, 750, peer=0), groups=[two]),
    )
    (trace,) = files_of(run, tmp_path)
    marks = [
        (packet.timestamp, packet.track_event) for packet in trace.packet if "joins" in packet.track_event.categories
    ]
    (start, begins), (end, ends) = marks
    assert (start, end) == (500, 500)
    assert list(begins.flow_ids) == list(ends.terminating_flow_ids) == [1]
    assert (begins.track_uuid >> 32, ends.track_uuid >> 32) == (1, 2)


def test_each_host_has_a_file_with_its_clock_and_the_manifest_names_the_machines(tmp_path: Path) -> None:
    """Two hosts whose monotonic clocks differ by 10,000 ns, aligned by their wall clocks."""
    run = timeline(
        rank(0, step(0, 1000, 2000), clock(1000, 501_000), boot_id="a"),
        rank(1, step(0, 11_000, 12_500), clock(11_000, 501_000), boot_id="b"),
    )
    traces = files_of(run, tmp_path)
    assert [[entry[2:4] for entry in slices(trace)] for trace in traces] == [[(501_000, 1000)], [(501_000, 1500)]]
    pairs = [
        [
            [(time.clock_id, time.timestamp) for time in packet.clock_snapshot.clocks]
            for packet in trace.packet
            if packet.HasField("clock_snapshot")
        ]
        for trace in traces
    ]
    assert pairs == [[[(3, 1000), (1, 501_000)]], [[(3, 11_000), (1, 501_000)]]]
    assert manifest(tmp_path) == {
        "version": 1,
        "trace_time": {"clock": "REALTIME", "file": "host-0.pftrace"},
        "files": [
            {"path": "host-0.pftrace", "machine": {"name": "host-a"}},
            {"path": "host-1.pftrace", "machine": {"name": "host-b"}},
        ],
        "attributes": {
            "traincope.run": "hand-made",
            "traincope.world_size": 2,
            "traincope.max_clock_error_ns": "unknown",
        },
    }


def test_the_clocks_are_perfettos(tmp_path: Path) -> None:
    (trace,) = files_of(two_ranks(), tmp_path)
    (first, *_) = trace.packet
    assert first.trace_packet_defaults.timestamp_clock_id == perfetto.BUILTIN_CLOCK_REALTIME
    assert first.sequence_flags == perfetto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    snapshots = [packet.clock_snapshot for packet in trace.packet if packet.HasField("clock_snapshot")]
    assert {clock.clock_id for snapshot in snapshots for clock in snapshot.clocks} == {
        perfetto.BUILTIN_CLOCK_MONOTONIC,
        perfetto.BUILTIN_CLOCK_REALTIME,
    }


def test_an_open_interval_lasts_to_the_end_and_is_marked(tmp_path: Path) -> None:
    hanging = Row(kind=Kind.SPAN, start_ns=2800, end_ns=OPEN, name="endless", step=2)
    (trace,) = files_of(two_ranks(hanging, ending=None), tmp_path)
    (entry,) = [entry for entry in slices(trace) if entry[1] == "endless"]
    assert (entry[2:4], entry[4]["open"]) == ((2800, 200), True)


def test_a_run_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no records"):
        write_hosts(timeline(), tmp_path)
