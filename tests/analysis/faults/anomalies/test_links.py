"""Faults of the hosts' links. What was before the run, small counts and speeds by design accuse no link."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis.faults.anomalies.links import host_links, link_faults
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.marks import marks
from traincope.events import KERNEL_LOG, LINK_CHANGED, LINK_ERRORS, Kind
from traincope.store import RankRecords
from traincope.topology import Host

S = 1_000_000_000
Event = tuple[int, str, Mapping[str, Any]]
CARD = "0x15b3:0x1021"
GIGABIT = 1_000_000_000


def on_host(
    number: int,
    host: str,
    *events: Event,
    links: Mapping[str, Mapping[str, Any]] | None = None,
    steps: tuple[tuple[int, int], ...] = ((0, 100),),
    **device: str,
) -> RankRecords:
    """A rank with these links and steps (begin and end in seconds). A second thread wrote these events, at these
    seconds.
    """
    rows = [
        Row(kind=Kind.EVENT, start_ns=at * S, end_ns=at * S, name=name, step=0, group=group, thread="thread-1")
        for group, (at, name, _) in enumerate(events, start=1)
    ]
    own = rank(number, *(step(at, begin * S, end * S) for at, (begin, end) in enumerate(steps)), *rows)
    details = {group: dict(values) for group, (_, _, values) in enumerate(events, start=1)}
    states = {name: dict(state) for name, state in (links or {}).items()}
    info = replace(own.info, host=Host(name=host, boot_id=host), device=device, links=states)
    return replace(own, details=details, info=info)


def port(
    gigabits: int | None = 400, *, name: str = "mlx5_0/1", up: bool = True, **more: Any
) -> dict[str, Mapping[str, Any]]:
    speed = None if gigabits is None else gigabits * GIGABIT
    shared = {"kind": "InfiniBand", "card": CARD, "width": 4, "first_bits_per_second": speed}
    return {name: {**shared, "up": up, "bits_per_second": speed, **more}}


def slot(width: int, *, gpu: bool = False, transfers: float = 32.0, can: int = 16) -> dict[str, Mapping[str, Any]]:
    card, holds, address = ("0x10de:0x2330", "GPU", "0000:3b:00.0") if gpu else (CARD, "mlx5_0", "0000:1a:00.0")
    state = {"card": card, "holds": holds, "gpu": gpu, "transfers": transfers, "width": width}
    return {address: {**state, "max_transfers": 32.0, "max_width": can}}


def changed(gigabits: int, *, up: bool = True, was_up: bool = True) -> Mapping[str, Any]:
    state = {"up": up, "bits_per_second": gigabits * GIGABIT, "width": 4}
    return {"port": "mlx5_0/1", "was_up": was_up, **state}


def errors(
    sent_packets: int | None = None, *, of: str = "mlx5_0/1", seconds: float = 10.0, **counts: int
) -> Mapping[str, Any]:
    named = {name.replace("_segments", " segments"): count for name, count in counts.items()}
    return {"port": of, "counts": named, "sent_packets": sent_packets, "seconds": seconds}


def faults_of(*ranks: RankRecords) -> list[Fault]:
    return sorted(link_faults(timeline(*ranks)), key=lambda fault: (fault.at_ns, fault.ranks))


def test_errors_name_host_port_and_counts() -> None:
    (fault,) = faults_of(
        on_host(0, "a", links=port()),
        on_host(
            1,
            "b",
            (30, LINK_ERRORS, errors(packet_seq_err=80)),
            (60, LINK_ERRORS, errors(packet_seq_err=40, local_ack_timeout_err=300, seconds=30)),
            links=port(),
        ),
        on_host(2, "b"),
    )
    assert fault == Fault(
        kind=FaultKind.LINK_ERRORS,
        at_ns=30 * S,
        ranks=(1, 2),
        step=0,
        what="port mlx5_0/1 of host b: 300 timeouts after which packets were sent again, "
        "120 requests to send again after a gap",
        evidence="counted by the kernel (local_ack_timeout_err, packet_seq_err) within 40.0 s",
        confidence="high",
    )
    assert fault.is_fault


def test_tcp_counts_by_its_share_of_what_was_sent() -> None:
    def tcp(again: int, sent: int | None) -> list[str]:
        row = (60, LINK_ERRORS, errors(sent, of="TCP", retransmitted_segments=again))
        return [fault.what for fault in faults_of(on_host(0, "b", row), on_host(1, "a"))]

    assert tcp(2_310, 100_000) == ["TCP on host b: 2,310 segments sent again (2.3 % of those sent)"]
    assert tcp(499, 100_000) == []
    assert tcp(20, 200) == []  # few in number: a host that does not answer when a job begins
    assert tcp(2_310, None) == []  # unknown of how many


@pytest.mark.parametrize("count", ["symbol_error", "rx_errors", "corrected errors", "port_xmit_discards"])
def test_few_errors_are_no_fault(count: str) -> None:
    def grown(number: int) -> list[FaultKind]:
        return [fault.kind for fault in faults_of(on_host(0, "a", (9, LINK_ERRORS, errors(**{count: number}))))]

    assert grown(99) == []
    assert grown(100) == [FaultKind.LINK_ERRORS]


def test_few_errors_per_hour_are_no_fault_in_a_long_run() -> None:
    def in_hours(hours: int) -> list[Fault]:
        row = (9, LINK_ERRORS, errors(symbol_error=150))
        return faults_of(on_host(0, "a", row, steps=((0, 3_600 * hours),)))

    assert len(in_hours(14)) == 1
    assert in_hours(16) == []


def test_one_uncorrected_error_of_the_bus_is_a_fault() -> None:
    row = (9, LINK_ERRORS, {**errors(of="0000:1a:00.0"), "counts": {"uncorrected errors": 1}})
    (fault,) = faults_of(on_host(0, "a", row, links=slot(16)))
    assert fault.what == "the PCIe slot 0000:1a:00.0 (mlx5_0) of host a: 1 uncorrected error on the PCIe bus"


def test_a_lost_link_is_a_fault_also_if_it_comes_back() -> None:
    down, up = (10, LINK_CHANGED, changed(2, up=False)), (20, LINK_CHANGED, changed(400, was_up=False))
    lost = (10, LINK_ERRORS, errors(link_downed=1))
    texts = [fault.what for fault in faults_of(on_host(0, "a", down, lost, up, links=port()))]
    assert texts == ["port mlx5_0/1 of host a lost its link; it is up again"]
    (fault,) = faults_of(on_host(0, "a", down, links=port(up=False)))  # a port without a count
    assert (fault.what, fault.at_ns) == ("port mlx5_0/1 of host a lost its link; it stays down", 10 * S)


def test_a_port_that_never_had_a_link_is_not_in_use() -> None:
    other = (9, LINK_CHANGED, changed(10, up=False, was_up=False))
    assert faults_of(on_host(0, "a", other, links=port(None, up=False))) == []


def test_a_port_that_becomes_slower_is_a_fault() -> None:
    (fault,) = faults_of(on_host(0, "a", (40, LINK_CHANGED, changed(100)), links=port(400)))
    assert (fault.kind, fault.what, fault.at_ns) == (
        FaultKind.LINK_SLOW,
        "port mlx5_0/1 of host a fell from 400 Gb/s to 100 Gb/s",
        40 * S,
    )


def test_a_port_slower_than_on_most_hosts_is_a_fault() -> None:
    hosts = [on_host(number, host, links=port(200 if host == "b" else 400)) for number, host in enumerate("abcd")]
    (fault,) = faults_of(*hosts)
    assert fault.what == "port mlx5_0/1 of host b runs at 200 Gb/s, and at 400 Gb/s on most of the other hosts"
    assert fault.ranks == (1,)


def test_a_lower_speed_by_design_is_no_fault() -> None:
    """All hosts have it, or only one other host is known, or it is another port of the card."""
    alike = [on_host(number, host, links=port(100)) for number, host in enumerate("abc")]
    assert faults_of(*alike) == []
    assert faults_of(on_host(0, "a", links=port(100)), on_host(1, "b", links=port(400))) == []
    storage = port(400) | port(100, name="mlx5_8/1")
    assert faults_of(*(on_host(number, host, links=storage) for number, host in enumerate("abc"))) == []


def test_a_slot_with_half_of_its_lanes_is_a_fault() -> None:
    alone = faults_of(on_host(0, "a", links=slot(8)))
    assert [(fault.what, fault.confidence) for fault in alone] == [
        (
            "the PCIe slot 0000:1a:00.0 (mlx5_0) of host a runs at 32 GT/s x8, and can do 32 GT/s x16",
            "medium",
        )
    ]
    compared = faults_of(*(on_host(at, host, links=slot(8 if host == "b" else 16)) for at, host in enumerate("abc")))
    assert [(fault.ranks, fault.confidence) for fault in compared] == [((1,), "high")]


def test_slots_that_all_hosts_have_alike_are_their_design() -> None:
    assert faults_of(*(on_host(at, host, links=slot(8)) for at, host in enumerate("abc"))) == []
    assert faults_of(on_host(0, "a", links=slot(8, can=8))) == []


def test_the_slot_of_a_gpu_counts_for_the_rank_that_uses_it() -> None:
    narrow = slot(16, gpu=True, transfers=16.0)
    (fault,) = faults_of(on_host(0, "a", links=narrow), on_host(1, "a", slot="0000:3b:00.0"))
    assert fault.ranks == (1,)
    assert fault.what == "the PCIe slot 0000:3b:00.0 (GPU) of host a runs at 16 GT/s x16, and can do 32 GT/s x16"
    assert faults_of(on_host(0, "a", links=narrow)) == []  # no rank uses it: without work a GPU is slow


def test_steps_with_errors_are_compared_with_the_others() -> None:
    def evidence(slow: int) -> str:
        steps = [(0, 1)]
        for at in range(20):
            begin = steps[-1][1]
            steps.append((begin, begin + (slow if 5 <= at < 10 else 1)))
        begin, end = steps[6][0], steps[10][1]
        row = (end, LINK_ERRORS, errors(packet_seq_err=500, seconds=end - begin))
        return faults_of(on_host(0, "a", row, steps=tuple(steps)))[0].evidence.partition("; ")[2]

    assert evidence(3) == "the steps meanwhile last 3.00 times as long as the others"
    assert evidence(1) == "the steps meanwhile do not last longer than the others"


def test_lines_of_the_kernels_log_are_faults_of_the_host() -> None:
    line = {"of": "machine check", "kernel_message": "mce: [Hardware Error]: CPU 0: Machine Check Exception: 5"}
    (fault,) = faults_of(on_host(0, "a", (5, KERNEL_LOG, line)), on_host(1, "a"), on_host(2, "b"))
    assert (fault.kind, fault.what, fault.ranks, fault.evidence) == (
        FaultKind.KERNEL_ERROR,
        "the kernel of host a logged: machine check",
        (0, 1),
        "mce: [Hardware Error]: CPU 0: Machine Check Exception: 5",
    )


def test_events_of_links_are_no_marks_and_lost_details_no_error() -> None:
    events: list[Event] = [(2, LINK_ERRORS, errors(packet_seq_err=1)), (3, KERNEL_LOG, {})]
    bare = replace(on_host(0, "a", *events), details={})
    assert list(marks(timeline(bare))) == []
    assert [fault.kind for fault in faults_of(bare)] == [FaultKind.KERNEL_ERROR]


def test_if_all_ranks_of_a_host_read_its_links_each_counts_once() -> None:
    row = (9, LINK_ERRORS, errors(packet_seq_err=500))
    both = [on_host(number, "a", row, links=port(sent_bytes=5)) for number in (0, 1)]
    assert [fault.ranks for fault in faults_of(*both)] == [(0, 1)]
    (link,) = host_links(timeline(*both))
    assert (link.host, link.name, link.of, link.sent_bytes, dict(link.counts)) == (
        "a",
        "mlx5_0/1",
        "InfiniBand",
        5,
        {"packet_seq_err": 500},
    )
