"""What the members share that stand still in a collective that all joined."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.faults.hangs.test_flights import HABIT, WAITING, flight, light, waits
from tests.analysis.faults.hangs.test_stops import hangs, victim
from tests.timeline.build import rank, run
from tests.timeline.collectives.test_nccl import of_kind, recorded
from tests.timeline.device.nccl import compile_with_clock, plugin_with_clock
from tests.timeline.device.test_nccl import CASES
from traincope.analysis.faults.hangs.common_places import UNKNOWN_MEMBERS, Halted, common_place, halted_members
from traincope.analysis.faults.hangs.evidence.calls import Call
from traincope.analysis.faults.hangs.hang import HangKind
from traincope.events import OPEN, Kind
from traincope.native.build import find_compiler
from traincope.store import RankRecords, RunRecords
from traincope.timeline import Channel, Timeline
from traincope.topology import Host


def on(host: str, records: RankRecords) -> RankRecords:
    return replace(records, info=replace(records.info, host=Host(name=host, boot_id="boot")))


def job(hosts: str, **settings: Mapping[str, str]) -> RunRecords:
    """Ranks 0, 1, ... on the hosts with these names of one letter."""
    made = run(*(on(host, rank(number)) for number, host in enumerate(hosts)))
    return replace(made, info=replace(made.info, settings=settings))


@pytest.mark.parametrize(
    ("ranks", "place"),
    [
        ((4, 5, 6, 7), ("host b", (4, 5, 6, 7))),
        ((4, 6), ("host b", (4, 5, 6, 7))),
        ((1, 5), ("local rank 1 of every host", (1, 5, 9))),
        ((5,), ("host b", (4, 5, 6, 7))),  # one rank has a rail too
        ((2, 6, 10), ("local rank 2 of every host", (2, 6, 10))),
        ((3, 6), (None, ())),
        (tuple(range(12)), (None, ())),
    ],
)
def test_the_smallest_place_that_has_them_all_is_common(ranks: tuple[int, ...], place: object) -> None:
    assert common_place(job("aaaabbbbcccc"), ranks, range(12)) == place


def test_racks_and_nvlink_domains_are_those_that_the_training_declares() -> None:
    declared = {"racks": {"a": "7", "b": "7"}, "nvlink_domains": {"b": "x", "c": "x"}}
    assert common_place(job("aabbccdd", **declared), (0, 3), range(8)) == ("rack 7", (0, 1, 2, 3))
    assert common_place(job("aabbccdd", **declared), (2, 5), range(8)) == ("NVLink domain x", (2, 3, 4, 5))
    assert common_place(job("aabbccdd"), (2, 5), range(8)) == (None, ())


def test_a_place_with_all_members_says_nothing() -> None:
    """A group within one host: of course all of them are there."""
    assert common_place(job("aabb"), (0,), (0, 1)) == (None, ())


def test_with_a_member_without_records_nothing_is_known() -> None:
    assert common_place(job("aab"), (0, 1), range(4)) == (None, ())


def test_members_without_a_result_are_on_one_host() -> None:
    """Rank 2 completed the collective, and waits in the next."""
    ahead = flight(3, HABIT, complete=1)
    ranks = [light(number, WAITING, of=ahead if number == 2 else waits(3), size=3) for number in range(3)]
    (hang,) = hangs(*(on(host, each) for host, each in zip("aab", ranks, strict=True)))
    assert (hang.kind, hang.common_place, hang.culprits) == (HangKind.NONE_COMPLETES, "host a", ())
    assert hang.evidence.endswith(
        "; ranks 0, 1 did not get its result, and the other members did: all on host a, and all members there"
    )


def test_without_a_difference_between_the_members_what_they_share_is_unknown() -> None:
    (hang,) = hangs(victim(0), victim(1))
    assert (hang.kind, hang.common_place) == (HangKind.NONE_COMPLETES, None)
    assert hang.evidence.endswith(f"; {UNKNOWN_MEMBERS}")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if find_compiler() is None:
        pytest.skip("no C++ compiler is installed")
    with plugin_with_clock(compile_with_clock(tmp_path_factory.mktemp("plugin") / "plugin.so")):
        yield


def last_call(timeline: Timeline) -> Call:
    """The last collective of rank 0."""
    records, (*_, last) = of_kind(timeline.ranks[0], Kind.COLLECTIVE)
    found, of = records[last], timeline.ranks[0].groups[int(records[last]["group"])]
    return Call(
        rank=0,
        channel=Channel(group=of.key),
        window=int(found["window"]),
        sequence=int(found["sequence"]),
        operation=timeline.ranks[0].name(int(found["name"])),
        num_bytes=int(found["value"]),
        root=-1,
        step=int(found["step"]),
        torch_count=0,
        place=0,
        start_ns=int(found["start_ns"]),
        end_ns=OPEN,
        raised=False,
        is_async=True,
        group=of,
        in_training_thread=True,
    )


@pytest.mark.usefixtures("plugin")
def test_nccls_records_show_whose_kernel_did_not_begin_or_end(tmp_path: Path) -> None:
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    call = last_call(timeline)
    assert halted_members(timeline, call, lacking=(0, 1)) is None  # all kernels ended
    records, (*_, last) = of_kind(timeline.ranks[1], Kind.NCCL_RUN)
    records["end_ns"][last] = OPEN
    assert halted_members(timeline, call, lacking=(0, 1)) == Halted(ranks=(1,), lack="end it on their GPU")
    records["peer"][last] = 0
    assert halted_members(timeline, call, lacking=(0, 1)) == Halted(ranks=(1,), lack="begin it on their GPU")
    others, (*_, same) = of_kind(timeline.ranks[0], Kind.NCCL_RUN)
    others["end_ns"][same], records["peer"][last] = OPEN, 1
    assert halted_members(timeline, call, lacking=(0, 1)) is None  # all kernels run: the records tell nothing apart


@pytest.mark.usefixtures("plugin")
def test_operations_that_are_not_the_same_collective_are_not_compared(tmp_path: Path) -> None:
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    runs, (*_, last) = of_kind(timeline.ranks[1], Kind.NCCL_RUN)
    runs["end_ns"][last] = OPEN
    records, (*_, operation) = of_kind(timeline.ranks[1], Kind.NCCL_CALL)
    records["sequence"][operation] = 7
    assert halted_members(timeline, last_call(timeline), lacking=(0, 1)) is None
