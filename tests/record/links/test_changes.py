"""Events of links: states at first and when they change, and the growth of errors. What was before does not count."""

from pathlib import Path
from typing import Any

import pytest

from tests.record.links.fake import CARD, GPU, PORT, SNMP, ethernet, infiniband, write
from traincope.record.links.changes import LinkChanges

S = 1_000_000_000


@pytest.fixture
def host(tmp_path: Path) -> Path:
    infiniband(tmp_path)
    return tmp_path


def named(changes: LinkChanges, name: str, at: int, *, is_last: bool = False) -> list[dict[str, Any]]:
    return [details for each, details in changes.look(at * S, is_last=is_last) if each == name]


def test_the_first_look_has_the_states_and_no_errors(host: Path) -> None:
    events = list(LinkChanges(host).look(0))
    assert [(name, details.get("port") or details.get("slot")) for name, details in events] == [
        ("host port", "mlx5_0/1"),
        ("host port", "TCP"),
        ("host slot", "0000:1a:00.0"),
        ("host slot", "0000:3b:00.0"),
    ]
    assert events[0][1] == {
        "port": "mlx5_0/1",
        "port_kind": "InfiniBand",
        "card": "0x15b3:0x1021",
        "slot": "0000:1a:00.0",
        "up": True,
        "bits_per_second": 400_000_000_000,
        "width": 4,
        "sent_bytes": 0,
        "received_bytes": 0,
        "seconds": 0.0,
    }


def test_a_quiet_host_writes_nothing_more(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    write(host, {f"{PORT}/counters/port_xmit_data": 5_000, f"{PORT}/counters/port_xmit_packets": 900})
    assert list(changes.look(10 * S)) == []


def test_growth_is_written_at_once_and_then_every_30_seconds(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    written = []
    for at in range(10, 80, 10):
        write(
            host, {f"{PORT}/hw_counters/packet_seq_err": 12 + at, f"{PORT}/counters/port_xmit_packets": 500 + 100 * at}
        )
        written += [(at, details) for details in named(changes, "host link errors", at)]
    write(host, {f"{PORT}/counters/symbol_error": 9})
    written += [(75, details) for details in named(changes, "host link errors", 75, is_last=True)]
    assert written == [
        (10, {"port": "mlx5_0/1", "counts": {"packet_seq_err": 10}, "sent_packets": 1000, "seconds": 10.0}),
        (40, {"port": "mlx5_0/1", "counts": {"packet_seq_err": 30}, "sent_packets": 3000, "seconds": 30.0}),
        (70, {"port": "mlx5_0/1", "counts": {"packet_seq_err": 30}, "sent_packets": 3000, "seconds": 30.0}),
        (75, {"port": "mlx5_0/1", "counts": {"symbol_error": 2}, "sent_packets": 0, "seconds": 5.0}),
    ]


def test_packets_count_from_the_last_reading_without_errors(host: Path) -> None:
    changes = LinkChanges(host)
    for at, again in ((0, 0), (10, 0), (20, 40)):
        write(host, {"proc/self/net/snmp": SNMP.format(sent=1_000 * at, again=again).strip()})
        errors = named(changes, "host link errors", at)
    (tcp,) = errors
    assert tcp == {
        "port": "TCP",
        "counts": {"retransmitted segments": 40},
        "sent_packets": 10_000,
        "seconds": 10.0,
    }


def test_a_count_that_was_reset_starts_again(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    write(host, {f"{PORT}/hw_counters/packet_seq_err": 0, f"{PORT}/counters/port_xmit_packets": 0})
    assert named(changes, "host link errors", 10) == []
    write(host, {f"{PORT}/hw_counters/packet_seq_err": 5, f"{PORT}/counters/port_xmit_packets": 100})
    (errors,) = named(changes, "host link errors", 20)
    assert (errors["counts"], errors["sent_packets"]) == ({"packet_seq_err": 5}, 100)


def test_a_lost_link_is_a_change_of_state_and_a_count(tmp_path: Path) -> None:
    ethernet(tmp_path, "eth0")
    changes = LinkChanges(tmp_path)
    list(changes.look(0))
    ethernet(tmp_path, "eth0", carrier=0, carrier_down_count=2)
    (_, state), (_, errors) = changes.look(10 * S)
    assert (state["port"], state["up"]) == ("eth0", False)
    assert errors["counts"] == {"carrier_down_count": 1}


def test_the_last_look_has_the_traffic_of_the_run(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    write(host, {f"{PORT}/counters/port_xmit_data": 1_250, f"{PORT}/counters/port_rcv_data": 1_000})
    port, tcp = named(changes, "host port", 20, is_last=True)
    assert (port["sent_bytes"], port["received_bytes"], port["seconds"]) == (1_000, None, 20.0)  # one count was reset
    assert (tcp["port"], tcp["sent_bytes"]) == ("TCP", None)


def test_a_slot_that_loses_lanes_is_written(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    write(host, {f"{CARD}/current_link_width": 8, f"{CARD}/aer_dev_correctable": "RxErr 9\nTOTAL_ERR_COR 12"})
    events = list(changes.look(10 * S))
    assert [(name, details.get("width") or details.get("counts")) for name, details in events] == [
        ("host slot", 8),
        ("host link errors", {"corrected errors": 9}),
    ]


def test_a_gpu_without_work_lowers_its_speed_which_is_no_change(host: Path) -> None:
    write(host, {f"{GPU}/current_link_speed": "2.5 GT/s PCIe"})
    changes = LinkChanges(host)
    idle = [slot["transfers"] for slot in named(changes, "host slot", 0)]
    write(host, {f"{GPU}/current_link_speed": "32.0 GT/s PCIe"})
    (busy,) = named(changes, "host slot", 10)
    write(host, {f"{GPU}/current_link_speed": "2.5 GT/s PCIe"})
    assert (idle, busy["transfers"], busy["gpu"]) == ([32.0, 2.5], 32.0, True)
    assert named(changes, "host slot", 20) == []
