"""The records are what NCCL told the plugin: each operation of each communicator, by every version of the interface."""

import random
import threading
from pathlib import Path

import numpy as np
import pytest

import traincope
from tests.native.nccl_profiler.driver import (
    CHANNEL,
    COLLECTIVE,
    MESSAGE,
    VERSIONS,
    Communicator,
    Nccl,
    Progress,
    Truth,
    needs_plugin,
    wanted,
)
from traincope.events import Flag, Kind
from traincope.native.nccl import Count, find_plugin, load_plugin
from traincope.store import read_run
from traincope.store.redaction import redact
from traincope.store.segments.compacted import read_compacted, write_compacted
from traincope.store.segments.nccl import NcclOperation, nccl_operations
from traincope.store.segments.segments import read_segment

pytestmark = [needs_plugin, pytest.mark.usefixtures(wanted.__name__)]

DEVICE_EPOCH_NS = 1_800_000_000_000_000_000
"""The global timer of a GPU counts from the epoch, or from another instant: it is another clock than the host's."""


def operations_in(run: Path) -> tuple[NcclOperation, ...]:
    (rank,) = read_run(run).ranks
    return tuple(operation for thread in rank.threads for operation in nccl_operations(rank.thread(thread)))


def of(operations: tuple[NcclOperation, ...], communicator: Communicator) -> list[NcclOperation]:
    return [operation for operation in operations if operation.communicator == communicator.hash]


def all_reduce(sequence: int, *channels: tuple[int, int], announced: int | None = None, count: int = 10) -> Truth:
    return Truth(
        function="AllReduce", sequence=sequence, count=count, peer=0, datatype="ncclFloat32", algorithm="RING",
        protocol="SIMPLE", channels=list(channels), announced=len(channels) if announced is None else announced,
    )  # fmt: skip


def drawn(draw: random.Random, sequences: dict[str, int], at_ns: int) -> Truth:
    """Draw an operation that begins on the device at about this instant."""
    function = draw.choice(("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"))
    is_message, count = function in ("Send", "Recv"), draw.randrange(1, 1 << 40)
    begins = [at_ns + draw.randrange(1_000) for _ in range(draw.randint(1, 32))]
    channels = [(begin, begin + draw.randrange(100_000)) for begin in begins]
    peer = draw.randrange(4)
    key = f"{function} {peer}" if is_message else function
    sequence = sequences[key] = sequences.get(key, -1) + 1
    return Truth(
        function=function,
        sequence=sequence,
        count=count,
        peer=peer,
        datatype=draw.choice(("ncclBfloat16", "ncclInt8", "ncclFloat32")),
        channels=channels,
        announced=len(channels),
        is_message=is_message,
        algorithm=None if is_message else draw.choice(("RING", "TREE", "NVLS")),
        protocol=None if is_message else draw.choice(("LL", "LL128", "SIMPLE")),
    )


def assert_equal(found: NcclOperation, truth: Truth, communicator: Communicator) -> None:
    version = communicator.nccl.version
    assert (found.version, found.communicator, found.rank) == (version, communicator.hash, communicator.rank)
    assert found.num_ranks == (None if version == 3 else communicator.num_ranks)
    assert (found.function, found.algorithm, found.protocol, found.datatype) == (
        truth.function,
        truth.algorithm,
        truth.protocol,
        truth.datatype,
    )
    assert (found.is_message, found.sequence, found.peer) == (truth.is_message, truth.sequence, truth.peer)
    assert found.elements == truth.count
    assert (found.announced, found.begun, found.ended) == (
        0 if version == 3 else truth.announced,
        len(truth.channels),
        len(truth.channels),
    )
    for instant, bounds in (
        (found.call_ns, truth.called),
        (found.enqueued_ns, truth.enqueued),
        (found.start_ns, truth.began),
        (found.end_ns, truth.ended),
    ):
        assert instant is not None
        assert bounds[0] <= instant <= bounds[1]
    on_device = min(start for start, _ in truth.channels), max(stop for _, stop in truth.channels)
    assert (found.device_start_ns, found.device_end_ns) == ((None, None) if version == 3 else on_device)


@pytest.mark.parametrize("version", VERSIONS)
def test_operations_of_several_communicators_are_as_nccl_described_them(version: int, tmp_path: Path) -> None:
    """Each has a thread that enqueues and one that reports what the device did, and they run at the same time."""
    with traincope.run(tmp_path / "run", agent=False):
        nccl = Nccl(version)
        communicators = [
            Communicator(nccl=nccl, hash=0xFFFF_0000_1234_5600 + version * 16 + n, num_ranks=4 + n, rank=n, num_nodes=2)
            for n in range(3)
        ]

        def enqueue(communicator: Communicator) -> None:
            draw, sequences, progress = random.Random(communicator.hash), {}, Progress(communicator)
            for number in range(60):
                truth = drawn(draw, sequences, DEVICE_EPOCH_NS + number * 1_000_000)
                communicator.enqueue(truth, progress.launch)
            progress.join()
            communicator.end()

        threads = [threading.Thread(target=enqueue, args=(each,)) for each in communicators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert nccl.name == "traincope"
    assert {communicator.mask for communicator in communicators} == {COLLECTIVE | MESSAGE | CHANNEL}
    operations = operations_in(tmp_path / "run")
    assert len({operation.number for operation in operations}) == len(operations) == 180
    for communicator in communicators:
        found = of(operations, communicator)
        assert len(found) == len(communicator.truths) == 60
        for operation, truth in zip(found, communicator.truths, strict=True):
            assert_equal(operation, truth, communicator)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_an_operation_ends_with_the_last_channel_that_was_announced(version: int, tmp_path: Path) -> None:
    """2 of 3 channels, then all, then one more than announced, which ends later."""
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(version), hash=10 * version, num_ranks=2, rank=0)
        missing = all_reduce(0, (100, 200), (110, 190), announced=3)
        whole = all_reduce(1, (300, 400), (290, 380), (310, 370))
        surplus = all_reduce(2, (500, 600), (490, 580), (510, 950), announced=2)
        for truth in (missing, whole, surplus):
            communicator.enqueue(truth)
            communicator.run_on_device(truth)
    incomplete, complete, longer = of(operations_in(tmp_path / "run"), communicator)
    assert (incomplete.announced, incomplete.begun, incomplete.ended) == (3, 2, 2)
    assert (incomplete.end_ns, incomplete.device_start_ns, incomplete.device_end_ns) == (None, None, None)
    assert incomplete.start_ns is not None
    assert_equal(complete, whole, communicator)
    assert (longer.device_start_ns, longer.device_end_ns) == (490, 950)
    assert (longer.begun, longer.ended) == (3, 3)


def test_a_channel_without_a_time_leaves_the_operation_without_device_times(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(5), hash=77, num_ranks=2, rank=1)
        for truth in (all_reduce(0, (0, 200), (110, 190)), all_reduce(1, (100, 0)), all_reduce(2, (100, 1 << 62))):
            communicator.enqueue(truth)
            communicator.run_on_device(truth)
    for operation in of(operations_in(tmp_path / "run"), communicator):
        assert operation.end_ns is not None
        assert (operation.device_start_ns, operation.device_end_ns) == (None, None)


def test_an_operation_that_the_device_has_not_reached_has_no_start(tmp_path: Path) -> None:
    """It is open in the records: a collective that nothing has joined, or that stands still, looks like this."""
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(6), hash=88, num_ranks=2, rank=1)
        queued, running = all_reduce(0, (100, 200)), all_reduce(1, (100, 200), (120, 220))
        communicator.enqueue(queued)
        communicator.enqueue(running)
        communicator.begin_channels(running)
    waiting, standing = of(operations_in(tmp_path / "run"), communicator)
    assert (waiting.begun, waiting.start_ns, waiting.end_ns) == (0, None, None)
    assert (standing.begun, standing.ended, standing.end_ns) == (2, 0, None)
    assert running.began[0] <= (standing.start_ns or 0) <= running.began[1]


def test_a_communicator_that_ends_closes_what_is_open(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", agent=False):
        nccl = Nccl(6)
        ended, other = (Communicator(nccl=nccl, hash=hash_, num_ranks=2, rank=1) for hash_ in (91, 92))
        for communicator in (ended, other):
            communicator.enqueue(all_reduce(0, (100, 200)))
        ended.end()
    (rank,) = read_run(tmp_path / "run").ranks
    records = np.concatenate([rank.thread(thread) for thread in rank.threads])
    runs = records[records["kind"] == Kind.NCCL_RUN]
    assert (runs["flags"] & Flag.PARTIAL > 0).tolist() == [True, False]
    assert (runs["end_ns"] < 0).tolist() == [False, True]
    assert [operation.end_ns for operation in operations_in(tmp_path / "run")] == [None, None]


def test_a_replayed_graph_is_an_operation_each_time(tmp_path: Path) -> None:
    """NCCL starts the task's events anew in each replay, with the next number."""
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(5), hash=95, num_ranks=2, rank=1)
        for replay in range(3):
            truth = all_reduce(replay, (100 + replay, 200 + replay))
            communicator.enqueue(truth)
            communicator.run_on_device(truth)
    found = of(operations_in(tmp_path / "run"), communicator)
    assert [(each.sequence, each.device_start_ns, each.device_end_ns) for each in found] == [
        (0, 100, 200),
        (1, 101, 201),
        (2, 102, 202),
    ]


def test_handles_of_operations_that_are_gone_touch_nothing(tmp_path: Path) -> None:
    """The slot of each was taken by an operation 4,096 later, in another segment."""
    path = find_plugin().path
    assert path is not None
    counts = load_plugin(path).counts
    with traincope.run(tmp_path / "run", agent=False) as run:
        communicator = Communicator(nccl=Nccl(6), hash=99, num_ranks=2, rank=0)
        forgotten = all_reduce(0, (100, 200))
        communicator.enqueue(forgotten)
        begun = communicator.begin_channels(forgotten)
        for sequence in range(1, 5_001):
            truth = all_reduce(sequence, (sequence, 2 * sequence))
            communicator.enqueue(truth)
            communicator.run_on_device(truth)
            if sequence % 1_000 == 0:
                run.step()
        late_before = counts[Count.LATE_CHANNELS]
        communicator.end_channels(forgotten, begun)
        assert communicator.begin_channels(forgotten)[0].handle is None
        communicator.stop(forgotten.handle)
        assert counts[Count.LATE_CHANNELS] == late_before + 1
    lost, *others = of(operations_in(tmp_path / "run"), communicator)
    assert (lost.begun, lost.ended, lost.end_ns) == (1, 0, None)
    assert [(each.device_start_ns, each.device_end_ns) for each in others] == [(n, 2 * n) for n in range(1, 5_001)]


def test_every_segment_can_be_read_alone(tmp_path: Path) -> None:
    """Segments begin while the training runs, and older ones may be deleted."""
    with traincope.run(tmp_path / "run", agent=False) as run:
        nccl = Nccl(4)
        ended, communicator = (Communicator(nccl=nccl, hash=hash_, num_ranks=8, rank=3) for hash_ in (41, 1 << 63))
        ended.enqueue(all_reduce(0, (100, 200)))
        ended.end()
        for sequence in range(6_000):
            communicator.enqueue(all_reduce(sequence, (100, 200)))
            if sequence % 1_000 == 999:
                run.step()
    segments = [
        read_segment(path).records
        for path in sorted((tmp_path / "run").rglob("*.seg"))
        if Kind.NCCL_CALL in read_segment(path).records["kind"]
    ]
    assert len(segments) > 1
    for records in segments:
        assert {operation.function for operation in nccl_operations(records)} == {"AllReduce"}
        assert {operation.num_ranks for operation in nccl_operations(records)} == {8}
    operations = of(operations_in(tmp_path / "run"), communicator)
    assert [operation.sequence for operation in operations] == list(range(6_000))
    assert [operation.step for operation in operations] == [sequence // 1_000 - 1 for sequence in range(6_000)]


def test_records_without_room_are_counted_as_dropped(tmp_path: Path) -> None:
    """More operations between two steps than a segment has room for."""
    num_enqueued = 9_600
    with traincope.run(tmp_path / "run", agent=False) as run:
        communicator = Communicator(nccl=Nccl(4), hash=43, num_ranks=8, rank=3)
        for sequence in range(num_enqueued):
            communicator.enqueue(all_reduce(sequence, (100, 200)))
        run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    found = of(operations_in(tmp_path / "run"), communicator)
    assert [operation.sequence for operation in found] == list(range(len(found)))
    assert 0 < num_enqueued - len(found) == rank.dropped


def test_long_and_missing_texts(tmp_path: Path) -> None:
    long = "AGxLLMC_ReduceScatter_RSxTMALDMC"
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(6), hash=44, num_ranks=8, rank=3)
        for algorithm in (long, None):
            truth = all_reduce(0, (100, 200))
            truth.algorithm = algorithm
            communicator.enqueue(truth)
    assert [each.algorithm for each in of(operations_in(tmp_path / "run"), communicator)] == [long[:20], None]


@pytest.mark.parametrize(
    ("function", "num_bytes"), [("AllReduce", 40), ("AllGather", 320), ("ReduceScatter", 320), ("Broadcast", 40)]
)
def test_bytes_count_as_nccl_tests_count_them(function: str, num_bytes: int, tmp_path: Path) -> None:
    """10 elements of 4 bytes, of each of 8 ranks for what is gathered or scattered."""
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(6), hash=45, num_ranks=8, rank=3)
        truth = all_reduce(0, (100, 200))
        truth.function = function
        communicator.enqueue(truth)
    (operation,) = of(operations_in(tmp_path / "run"), communicator)
    assert operation.num_bytes == num_bytes


def test_copies_of_the_records_have_the_same_operations(tmp_path: Path) -> None:
    """A redacted run, and segments as the agent compacts them."""
    with traincope.run(tmp_path / "run", agent=False):
        communicator = Communicator(nccl=Nccl(6), hash=(1 << 64) - 2, num_ranks=8, rank=3)
        draw, sequences = random.Random(5), {}
        for number in range(20):
            truth = drawn(draw, sequences, DEVICE_EPOCH_NS + number * 1_000_000)
            communicator.enqueue(truth)
            communicator.run_on_device(truth)
    operations = operations_in(tmp_path / "run")
    assert [operation.elements for operation in operations] == [truth.count for truth in communicator.truths]
    redact(tmp_path / "run", tmp_path / "copy")
    assert operations_in(tmp_path / "copy") == operations
    compacted = [
        read_compacted(write_compacted(tmp_path, read_segment(path))) for path in (tmp_path / "run").rglob("*.seg")
    ]
    assert tuple(each for segment in compacted for each in nccl_operations(segment.records)) == operations
