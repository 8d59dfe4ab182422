"""Reading of traces to the last event and ns: in every layout, in pieces of any size, truncated or not."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.traces.decoders import needs_decoder
from tests.ingest.writing import LAYOUTS, MARK, Event, complete, kineto
from traincope.errors import DataError
from traincope.ingest.traces import stream
from traincope.ingest.traces.batches import PlainDecoder
from traincope.ingest.traces.kineto import read_kineto
from traincope.ingest.traces.native_batches import NativeDecoder
from traincope.native.cached import VARIABLE, Use
from traincope.store.side_tables.traces import HOST_OPERATOR, KERNEL, Lane, Trace, TraceCollective, TraceGroup

Layout = Callable[..., str]


@pytest.fixture(params=[Use.OFF, pytest.param(Use.AUTO, marks=needs_decoder)], scope="module", autouse=True)
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test with the plain decoder, then with the native one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield


def in_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the file be read and decoded in pieces of this size."""
    for owner, name in ((stream, "CHUNK"), (stream, "COMPRESSED"), (PlainDecoder, "piece"), (NativeDecoder, "piece")):
        monkeypatch.setattr(owner, name, size)


EVENTS = (
    MARK,
    complete("aten::mm", "10.5", "3.25", cat="cpu_op", pid=41, tid=42, **{"Ev Idx": 0}),
    complete("cudaLaunchKernel", "11.0", "1", cat="cuda_runtime", pid=41, tid=42, correlation=9),
    {"ph": "s", "id": 9, "pid": 41, "tid": 42, "ts": 11, "cat": "ac2g", "name": "ac2g"},
    complete("gemm<1, 2>", "20.001", "5.999", correlation=9, grid=[4, 1, 1], block=[128, 1, 1], stream=7),
    complete('say "hi" \\ {}', "30", "0.5", tid=20),
    complete("train.py(3): step", "1", "90", cat="python_function", pid=41, tid=42),
    MARK,
)


def events_of(trace: Trace) -> list[tuple[str, str, Lane, int, int]]:
    """Category, name, lane, start and duration of each kept event."""
    columns = zip(trace.category.tolist(), trace.name.tolist(), trace.lane.tolist(), strict=True)
    times = zip(trace.start_ns.tolist(), trace.duration_ns.tolist(), strict=True)
    return [
        (trace.categories[category], trace.names[name], trace.lanes[lane], *time)
        for (category, name, lane), time in zip(columns, times, strict=True)
    ]


EVERY = 7
"""Characters between two truncations."""
HOST, STREAM = Lane(process="41", thread="42"), Lane(process="0", thread="7")
KEPT = [
    ("cpu_op", "aten::mm", HOST, 10_500, 3_250),
    ("cuda_runtime", "cudaLaunchKernel", HOST, 11_000, 1_000),
    ("kernel", "gemm<1, 2>", STREAM, 20_001, 5_999),
    ("kernel", 'say "hi" \\ {}', Lane(process="0", thread="20"), 30_000, 500),
]


def written(path: Path, text: str) -> Path:
    file = path / "trace.json"
    file.write_text(text)
    return file


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_trace(layout: Layout, tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path, layout(EVENTS)))
    assert events_of(trace) == KEPT
    assert trace.info.num_read == len(EVENTS)
    assert trace.info.lost is None


def test_launches_and_correlations_are_read(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path, kineto(EVENTS)))
    assert trace.correlation.tolist() == [0, 9, 9, 0]
    assert [trace.launches[code] if code >= 0 else None for code in trace.launch.tolist()] == [
        *(None, None, '"grid": [4, 1, 1], "block": [128, 1, 1]', None),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequence_numbers_threads_and_bytes_are_read(layout: Layout, tmp_path: Path) -> None:
    backward = {"Sequence number": 1080, "Fwd thread id": 1}
    events = [
        complete("aten::relu", "1", "1", cat="cpu_op", **{"Sequence number": 46651}),
        complete("ReluBackward0", "2", "1", cat="cpu_op", **backward),
        complete("aten::add", "3", "1", cat="cpu_op"),
        complete("Memcpy HtoD", "4", "1", cat="gpu_memcpy", bytes=147456, correlation=4),
        complete("Memset (Device)", "5", "1", cat="gpu_memset", bytes=8),
        complete("Memcpy DtoD", "6", "1", cat="gpu_memcpy", kind="DtoD"),
        complete("gemm", "7", "1", **backward, bytes=3),
    ]
    trace = read_kineto(written(tmp_path, layout(events)))
    assert trace.sequence.tolist() == [46651, 1080, -1, -1, -1, -1, -1]
    assert trace.forward_thread.tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert trace.num_bytes.tolist() == [-1, -1, -1, 147456, 8, -1, -1]


def test_of_python_calls_garbage_collection_and_compilation_are_kept(tmp_path: Path) -> None:
    calls = [
        "<built-in function collect>",
        "torch/_dynamo/convert_frame.py(1633): _compile",
        "/venv/lib/torch/_dynamo/convert_frame.py(712): _compile",
        "torch/_dynamo/convert_frame.py(1700): _compile_inner",
        "torch/cuda/__init__.py(107): _is_compiled",
        "train.py(3): collect",
    ]
    events = [complete(name, "1", "2", cat="python_function") for name in calls]
    trace = read_kineto(written(tmp_path, kineto(events)))
    assert [trace.names[name] for name in trace.name.tolist()] == calls[:3]
    assert trace.info.num_read == len(calls)


ALLREDUCE = {
    "Collective name": "allreduce",
    "In msg nelems": 2049000,
    "Out msg nelems": 2049000,
    "Group size": 2,
    "dtype": "Float",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}
"""Arguments in a public trace of DDP on A100s."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_collectives_of_kernels_and_operators_are_read(layout: Layout, tmp_path: Path) -> None:
    uneven = {**ALLREDUCE, "Collective name": "all_to_allv", "In split size": "[3, 5]", "Seq": 17}
    many = {**ALLREDUCE, "Process Group Ranks": "[0, 1, 2, ..., 127]", "Group size": 128, "Process Group Name": "tp"}
    events = [
        complete("record_param_comms", "1", "1", cat="cpu_op", **ALLREDUCE),
        complete("ncclDevKernel_AllReduce", "2", "1", correlation=3, **ALLREDUCE),
        complete("ncclDevKernel_SendRecv", "3", "1", **uneven),
        complete("ncclDevKernel_AllReduce", "4", "1", **many),
        complete("gemm", "5", "1"),
    ]
    job = {
        "distributedInfo": {"pg_config": [{"pg_name": "tp", "pg_desc": "mesh_tp", "pg_size": 3, "ranks": [0, 2, 4]}]}
    }
    trace = read_kineto(written(tmp_path, layout(events, head=job)))
    assert (len(trace.collectives), trace.collective[4]) == (3, -1)
    first, again, second, third = (trace.collectives[code] for code in trace.collective.tolist()[:4])
    assert first is again
    assert first == TraceCollective(
        name="allreduce",
        group="0",
        description="default_pg",
        ranks=(0, 1),
        group_size=2,
        dtype="Float",
        in_elements=2049000,
        out_elements=2049000,
    )
    assert second == replace(first, name="all_to_allv", in_split=(3, 5), sequence=17)
    assert third == replace(first, group="tp", ranks=(), group_size=128)
    assert trace.info.groups == (TraceGroup(name="tp", description="mesh_tp", size=3, ranks=(0, 2, 4)),)
    assert trace.ranks_of(third) == (0, 2, 4)


@pytest.mark.parametrize(
    ("dims", "types", "expected"),
    [
        (
            [[6, 4], [], []],
            ["unsigned char", "Scalar", "Scalar"],
            TraceCollective(in_elements=24, dtype="unsigned char"),
        ),
        ([[[6, 4], [2]], [], []], ["TensorList", "", "Scalar"], TraceCollective(in_elements=26)),
    ],
)
def test_without_metadata_of_a_collective_its_recorded_shapes_remain(
    dims: object, types: list[str], expected: TraceCollective, tmp_path: Path
) -> None:
    arguments = {"Input Dims": dims, "Input type": types}
    events = [complete("record_param_comms", "1", "1", cat="cpu_op", **arguments)]
    trace = read_kineto(written(tmp_path, kineto(events)))
    assert [trace.collectives[code] for code in trace.collective.tolist()] == [expected]


def test_a_collective_without_any_arguments_is_unknown(tmp_path: Path) -> None:
    arguments = {"Input Dims": [[], [], []], "Input type": ["Scalar", "", ""]}
    events = [
        complete("record_param_comms", "1", "1", cat="cpu_op", **arguments),
        complete("record_param_comms", "2", "1", cat="cpu_op"),
    ]
    trace = read_kineto(written(tmp_path, kineto(events)))
    assert (trace.collective.tolist(), trace.collectives) == ([-1, -1], ())


def test_job_and_devices_are_read_before_and_after_the_events(tmp_path: Path) -> None:
    head = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 16}}
    tail = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "baseTimeNanoseconds": 1_000_000_000,
    }
    trace = read_kineto(written(tmp_path, kineto(EVENTS, head=head, tail=tail)), step=17)
    assert (trace.info.rank, trace.info.world_size, trace.info.step) == (3, 16, 17)
    assert trace.info.devices == {"0": "NVIDIA H100 80GB HBM3"}
    assert trace.start_ns[0] == 1_000_010_500


def test_events_are_sorted_by_time(tmp_path: Path) -> None:
    late, early = complete("b", "20", "1"), complete("a", "10", "1")
    assert [name for _, name, *_ in events_of(read_kineto(written(tmp_path, kineto([late, early]))))] == ["a", "b"]


def test_a_negative_duration_counts_as_zero(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path, kineto([complete("a", "10", "-3"), complete("b", "11", "2")])))
    assert trace.duration_ns.tolist() == [0, 2000]
    assert trace.info.num_negative == 1


def test_events_inside_of_another_object_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has its events inside of another object"):
        read_kineto(written(tmp_path, '{"run": {"trace": ' + kineto(EVENTS) + "}}"))


def test_an_event_that_ends_beyond_64_bits_is_left_out(tmp_path: Path) -> None:
    events = [complete("a", "1", "2"), complete("b", "9000000000000000", "300000000000000")]
    trace = read_kineto(written(tmp_path, kineto(events)))
    assert (trace.names[trace.name[0]], len(trace), trace.info.num_untimed) == ("a", 1, 1)


def test_a_bare_list_of_events_is_a_trace_also_without_its_end(tmp_path: Path) -> None:
    text = kineto(EVENTS)
    bare = text[text.index("[") : text.rindex("]")]
    for list_text in (bare + "]", bare, bare + ","):
        trace = read_kineto(written(tmp_path, list_text))
        assert events_of(trace) == KEPT
        assert trace.info.lost is None


def test_old_names_of_categories_are_translated(tmp_path: Path) -> None:
    old = [
        complete("k", "1", "1", cat="Kernel"),
        complete("m", "2", "1", cat="Memcpy"),
        complete("s", "3", "1", cat="Memset"),
    ]
    trace = read_kineto(written(tmp_path, kineto(old)))
    assert [category for category, *_ in events_of(trace)] == ["kernel", "gpu_memcpy", "gpu_memset"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1, 7, 64, 300])
def test_pieces_of_any_size_give_the_same_trace(
    layout: Layout, packed: bool, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pieces(monkeypatch, size)
    file = tmp_path / "trace.json"
    data = layout(EVENTS).encode()
    file.write_bytes(gzip.compress(data) if packed else data)
    trace = read_kineto(file)
    assert events_of(trace) == KEPT
    assert trace.info.lost is None


def test_several_gzip_members_are_one_trace(tmp_path: Path) -> None:
    data, file = kineto(EVENTS).encode(), tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(data[:200]) + gzip.compress(data[200:]) + b"\0\0")
    assert events_of(read_kineto(file)) == KEPT


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_truncated_trace_keeps_its_beginning_and_reports_the_loss(layout: Layout, tmp_path: Path) -> None:
    """The kept events are always the first ones of the complete trace."""
    text = layout(EVENTS).rstrip()
    begin = text.index("[") + 1
    kept = []
    for end in range(begin, len(text), EVERY):
        trace = read_kineto(written(tmp_path, text[:end]))
        assert events_of(trace) == KEPT[: len(trace)]
        assert trace.info.lost is not None
        kept.append(len(trace))
    assert kept == sorted(kept)
    assert set(kept) == {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_a_truncated_or_damaged_gzip_file_keeps_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [complete(f"k{number}", f"{number}.125", "0.5") for number in range(5_000)]
    packed, file = gzip.compress(kineto(many).encode()), tmp_path / "trace.json.gz"
    file.write_bytes(packed[: len(packed) // 2])
    cut = read_kineto(file)
    assert 0 < len(cut) < 5_000
    in_pieces(monkeypatch, 100)
    assert len(read_kineto(file)) == len(cut)
    assert cut.start_ns.tolist() == [1000 * number + 125 for number in range(len(cut))]
    assert cut.info.lost is not None
    assert "gzip data ends before its end" in cut.info.lost
    file.write_bytes(packed[:-8] + bytes(8))
    assert "gzip data is damaged" in str(read_kineto(file).info.lost)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_damaged_gzip_file_is_read_up_to_the_damaged_byte(share: float, tmp_path: Path) -> None:
    """The same events as in the text that zlib inflates byte by byte."""
    many = [complete(f"k{number * number}", f"{number}.125", "0.5") for number in range(5_000)]
    packed = bytearray(gzip.compress(kineto(many).encode()))
    at = int(share * len(packed))
    packed[at : at + 40] = bytes(255 - byte for byte in packed[at : at + 40])
    inflater, text = zlib.decompressobj(31), bytearray()
    with suppress(zlib.error):
        for byte in packed:
            text += inflater.decompress(bytes([byte]))
    (tmp_path / "trace.json.gz").write_bytes(packed)
    (tmp_path / "trace.json").write_bytes(text)
    trace = read_kineto(tmp_path / "trace.json.gz")
    assert 0 < len(trace) < len(many)
    assert events_of(trace) == events_of(read_kineto(tmp_path / "trace.json"))
    assert "gzip data is damaged" in str(trace.info.lost)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no list of traceEvents"),
        (b"not json", "it has no list of traceEvents"),
        (b'{"a": 1}', "it has no list of traceEvents"),
        (b"\x80\x04\x95pickle", "it has no list of traceEvents"),
        (b'{"a": , "traceEvents": []}', "is damaged before its events"),
        (b'{"traceEvents": [{"ph": "X", "cat": "c", "name": "k", "dur": 1}]}', "no event with a valid time"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "c", "name": "k", "ts": "x", "dur": 1}]}',
            "no event with a valid time",
        ),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "c", "name": "k", "ts": 1e40, "dur": 1}]}',
            "no event with a valid time",
        ),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_kineto(file)


@pytest.mark.parametrize("value", ["null", "7", '"x"', "[]", "[{}, 1]", "NaN"])
def test_a_value_that_is_no_event_costs_only_itself(value: str, tmp_path: Path) -> None:
    sound = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5}'
    file = tmp_path / "trace.json"
    file.write_text(f'{{"traceEvents": [{sound}, {value}, {sound}, {value}], "distributedInfo": {{"rank": 3}}}}')
    trace = read_kineto(file)
    assert trace.start_ns.tolist() == [1_000, 1_000]
    assert (trace.info.num_read, trace.info.lost, trace.info.rank) == (4, None, 3)


@pytest.mark.parametrize("time", ["NaN", "null", '"soon"', "1e300", "-Infinity"])
def test_an_event_without_a_valid_time_costs_only_itself(time: str, tmp_path: Path) -> None:
    """A million others may stand in the file."""
    sound = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5}'
    for bad in (sound.replace('"ts": 1', f'"ts": {time}'), sound.replace('"dur": 5', f'"dur": {time}')):
        file = tmp_path / "trace.json"
        file.write_text(f'{{"traceEvents": [{sound}, {bad}, {sound}]}}')
        trace = read_kineto(file)
        assert (trace.start_ns.tolist(), trace.end_ns.tolist()) == ([1_000, 1_000], [6_000, 6_000])
        assert (trace.info.num_read, trace.info.num_untimed, trace.info.lost) == (3, 1, None)


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        ({}, (False, False)),
        ({"Input Dims": [], "Input Strides": []}, (False, False)),
        ({"Input Dims": [[2]]}, (True, False)),
        ({"Input Dims": [[2]], "Input Strides": [[1]]}, (True, True)),
    ],
)
def test_a_trace_states_whether_shapes_were_recorded(
    arguments: dict[str, list[list[int]]], recorded: tuple[bool, bool], tmp_path: Path
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(kineto([complete("mine::op", "1", "1", cat="cpu_op", **arguments)]))
    info = read_kineto(file).info
    assert (info.has_shapes, info.has_strides) == recorded


def test_events_of_the_profiler_before_kineto_have_their_category_by_their_process(tmp_path: Path) -> None:
    """torch 1.4 to 1.7 wrote no categories, and a list without an object around it."""
    file = tmp_path / "trace.json"
    event = {"name": "aten::mm", "ph": "X", "ts": 1.0, "dur": 5.0, "tid": 1, "args": {}}
    flow = {"name": "aten::mm", "ph": "s", "ts": 1.0, "tid": 1, "pid": "CPU functions", "id": 1, "cat": "cpu_to_cuda"}
    of_host, of_gpu, of_others = ({**event, "pid": pid} for pid in ("CPU functions", "CUDA functions", "other"))
    file.write_text(json.dumps([of_host, flow, of_gpu, of_others]))
    trace = read_kineto(file)
    assert [trace.categories[code] for code in trace.category] == [HOST_OPERATOR, KERNEL]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_kineto(tmp_path / "nothing.json")


NAMES = st.text(max_size=12) | st.sampled_from(['"ph"', '{"ph": "X"', "},{", "}, {", "]", '\\"', "a\\", "inf", "NaN"])
TIMES = st.integers(0, 10**9).map(lambda ns: f"{ns // 1000}.{ns % 1000:03d}")
NESTED = st.just({"ph": "X"}) | st.just([{"a": "]"}, {"ph": "X", "dur": 1}]) | st.just([[], {}, None, -1.5e3])
COMPLETE = st.builds(
    lambda name, start, duration, cat, args: complete(name, start, duration, cat=cat, **args),
    NAMES,
    TIMES,
    TIMES,
    st.sampled_from(["kernel", "cpu_op", "gpu_memcpy"]),
    st.dictionaries(st.sampled_from(["x", "nested", "correlation", "bytes", "grid"]), NAMES | NESTED | st.integers()),
)
UNKNOWN_PHASE = st.sampled_from([{**MARK, "ph": "unknown"}, {"name": "no phase"}, {"ph": "X", "name": "no duration"}])


def _begin(event: Event) -> object:
    """The begin of an event with a duration. Equal ones are events that were written twice, which count once."""
    return event["ts"] if "dur" in event else object()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(COMPLETE | st.just(MARK) | UNKNOWN_PHASE, max_size=8, unique_by=_begin),
    st.sampled_from(LAYOUTS),
    st.sampled_from([5, 50, 1 << 20]),
)
def test_any_events_in_any_layout_equal_those_of_a_json_parser(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], layout: Layout, size: int
) -> None:
    text = layout(events)
    file = written(tmp_path_factory.getbasetemp(), text)
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, size)
        trace = read_kineto(file)
    parsed = [event for event in json.loads(text, parse_float=str, parse_int=str)["traceEvents"] if "dur" in event]
    expected = [
        (event["cat"], event["name"], int(event["ts"].replace(".", "")), int(event["dur"].replace(".", "")))
        for event in parsed
    ]
    read = [(category, name, start, duration) for category, name, _, start, duration in events_of(trace)]
    assert read == sorted(expected, key=lambda event: event[2])
    assert trace.info.num_read == len(events)


@pytest.mark.parametrize(
    ("written_as", "name"),
    [
        (b'"tab\there"', "tab\there"),
        (b'"caf\xe9"', "caf\ufffd"),
        (b'"half \\ud83d"', "half ?"),
        (b'"\\u0061\\n\\/"', "a\n/"),
    ],
)
@pytest.mark.parametrize("number", [b"1.5", b"inf", b"-nan", b"NaN", b"-Infinity"])
def test_strings_and_numbers_that_json_does_not_allow_are_repaired(
    written_as: bytes, name: str, number: bytes, tmp_path: Path
) -> None:
    """A copy of no duration had the bandwidth inf (https://github.com/pytorch/kineto/issues/105)."""
    text = kineto([complete("k", "1", "2"), complete("copy inf", "3", "0", cat="gpu_memcpy", bytes=200, speed="?")] * 2)
    file = tmp_path / "trace.json"
    file.write_bytes(text.encode().replace(b'"k"', written_as).replace(b'"?"', number))
    trace = read_kineto(file)
    assert [trace.names[code] for code in trace.name.tolist()] == [name, name, "copy inf", "copy inf"]
    assert trace.num_bytes.tolist() == [-1, -1, 200, 200]
    assert (trace.info.num_read, trace.info.lost) == (4, None)
