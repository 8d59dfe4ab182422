"""Events of links: states at first and when they change, and the growth of errors. What was before does not count."""

from pathlib import Path
from typing import Any

import pytest

from tests.record.links.fake import CARD, GPU, PORT, SNMP, ethernet, infiniband, write
from traincope.record.links.changes import LinkChanges

S = 1_000_000_000
SLOT = {"transfers": 32.0, "width": 16, "max_transfers": 32.0, "max_width": 16, "errors": {}}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    infiniband(tmp_path)
    return tmp_path


def named(changes: LinkChanges, name: str, at: int, *, is_last: bool = False) -> list[dict[str, Any]]:
    return [details for each, details in changes.look(at * S, is_last=is_last) if each == name]


def test_the_first_look_has_the_states_and_no_events(host: Path) -> None:
    changes = LinkChanges(host)
    assert list(changes.look(0)) == []
    assert changes.links == {
        "mlx5_0/1": {
            "kind": "InfiniBand",
            "card": "0x15b3:0x1021",
            "up": True,
            "bits_per_second": 400_000_000_000,
            "first_bits_per_second": 400_000_000_000,
            "width": 4,
            "sent_bytes": 0,
            "received_bytes": 0,
            "errors": {},
        },
        "TCP": {
            **dict.fromkeys(("bits_per_second", "first_bits_per_second", "width", "sent_bytes", "received_bytes")),
            "kind": "TCP",
            "card": "",
            "up": None,
            "errors": {},
        },
        "0000:1a:00.0": {"holds": "mlx5_0", "card": "0x15b3:0x1021", "gpu": False, **SLOT},
        "0000:3b:00.0": {"holds": "GPU", "card": "0x10de:0x2330", "gpu": True, **SLOT, "transfers": None},
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
        changed = {
            f"{PORT}/hw_counters/packet_seq_err": 12 + 3 * at,
            f"{PORT}/counters/port_xmit_packets": 500 + 100 * at,
        }
        write(host, changed)
        written += [(at, details) for details in named(changes, "host link errors", at)]
    write(host, {f"{PORT}/counters/symbol_error": 27})
    written += [(75, details) for details in named(changes, "host link errors", 75, is_last=True)]
    assert written == [
        (10, {"port": "mlx5_0/1", "counts": {"packet_seq_err": 30}, "sent_packets": 1000, "seconds": 10.0}),
        (40, {"port": "mlx5_0/1", "counts": {"packet_seq_err": 90}, "sent_packets": 3000, "seconds": 30.0}),
        (70, {"port": "mlx5_0/1", "counts": {"packet_seq_err": 90}, "sent_packets": 3000, "seconds": 30.0}),
        (75, {"port": "mlx5_0/1", "counts": {"symbol_error": 20}, "sent_packets": 0, "seconds": 5.0}),
    ]
    assert changes.links["mlx5_0/1"]["errors"] == {"packet_seq_err": 210, "symbol_error": 20}


def test_a_few_errors_are_in_the_state_alone_until_they_are_many(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    for at, count in ((10, 20), (20, 31)):
        write(host, {f"{PORT}/hw_counters/packet_seq_err": count, f"{PORT}/counters/port_xmit_packets": 500 + at})
        assert list(changes.look(at * S)) == []
    assert changes.links["mlx5_0/1"]["errors"] == {"packet_seq_err": 19}
    write(host, {f"{PORT}/hw_counters/packet_seq_err": 32})
    (errors,) = named(changes, "host link errors", 30)
    assert (errors["counts"], errors["sent_packets"], errors["seconds"]) == ({"packet_seq_err": 20}, 20, 30.0)


def test_packets_count_from_the_last_reading_without_errors(host: Path) -> None:
    changes = LinkChanges(host)
    for at, again in ((0, 0), (10, 0), (20, 40)):
        write(host, {"proc/self/net/snmp": SNMP.format(sent=1_000 * at, again=again).strip()})
        errors = named(changes, "host link errors", at)
    (tcp,) = errors
    assert tcp == {
        "port": "TCP",
        "counts": {"retransmitted segments": 40},
        "sent_packets": 10_040,
        "seconds": 10.0,
    }


def test_a_count_that_was_reset_starts_again(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    write(host, {f"{PORT}/hw_counters/packet_seq_err": 0, f"{PORT}/counters/port_xmit_packets": 0})
    assert named(changes, "host link errors", 10) == []
    write(host, {f"{PORT}/hw_counters/packet_seq_err": 50, f"{PORT}/counters/port_xmit_packets": 100})
    (errors,) = named(changes, "host link errors", 20)
    assert (errors["counts"], errors["sent_packets"]) == ({"packet_seq_err": 50}, 100)


def test_a_lost_link_is_a_change_and_a_count(tmp_path: Path) -> None:
    ethernet(tmp_path, "eth0")
    changes = LinkChanges(tmp_path)
    list(changes.look(0))
    ethernet(tmp_path, "eth0", carrier=0, carrier_down_count=2)
    (changed, state), (grown, errors) = changes.look(10 * S)
    assert (changed, grown) == ("host link changed", "host link errors")
    assert (state["port"], state["up"], state["was_up"]) == ("eth0", False, True)
    assert errors["counts"] == {"carrier_down_count": 1}
    port = changes.links["eth0"]
    assert (port["up"], port["bits_per_second"]) == (False, 25_000_000_000)


def test_the_lowest_speed_while_the_port_was_up_stays(host: Path) -> None:
    changes = LinkChanges(host)
    for rate, state in (("400 Gb/sec (4X NDR)", 4), ("2.5 Gb/sec (1X SDR)", 1), ("100 Gb/sec (4X EDR)", 4)):
        write(host, {f"{PORT}/rate": rate, f"{PORT}/state": f"{state}: {'ACTIVE' if state == 4 else 'DOWN'}"})
        list(changes.look(0))
    infiniband(host)
    list(changes.look(0))
    port = changes.links["mlx5_0/1"]
    assert (port["bits_per_second"], port["first_bits_per_second"], port["width"]) == (10**11, 4 * 10**11, 4)


def test_the_traffic_is_that_since_the_first_look(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    write(host, {f"{PORT}/counters/port_xmit_data": 1_250, f"{PORT}/counters/port_rcv_data": 1_000})
    list(changes.look(20 * S))
    port = changes.links["mlx5_0/1"]
    assert (port["sent_bytes"], port["received_bytes"]) == (1_000, None)  # one count was reset


def test_a_slot_that_loses_lanes_is_a_change(host: Path) -> None:
    changes = LinkChanges(host)
    list(changes.look(0))
    write(host, {f"{CARD}/current_link_width": 8, f"{CARD}/aer_dev_correctable": "RxErr 30\nTOTAL_ERR_COR 33"})
    (_, changed), (_, errors) = changes.look(10 * S)
    assert changed == {"port": "0000:1a:00.0", "was_up": None, "transfers": 32.0, "width": 8}
    assert (errors["port"], errors["counts"]) == ("0000:1a:00.0", {"corrected errors": 30})
    assert changes.links["0000:1a:00.0"]["width"] == 8


def test_a_gpu_without_work_lowers_its_speed_which_is_no_change(host: Path) -> None:
    """At the first look, a training has given it none."""
    changes, speeds = LinkChanges(host), []
    for speed in ("2.5", "5.0", "32.0", "2.5"):
        write(host, {f"{GPU}/current_link_speed": f"{speed} GT/s PCIe"})
        assert list(changes.look(0)) == []
        speeds.append(changes.links["0000:3b:00.0"]["transfers"])
    assert speeds == [None, 5.0, 32.0, 32.0]
