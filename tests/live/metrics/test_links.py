"""Metrics of the node's links: traffic and state of ports, growth of errors since the agent began, narrow slots."""

from pathlib import Path

from tests.record.links.fake import CARD, PORT, SNMP, infiniband, write
from traincope.live.metrics.links import HostLinks

STATE = {
    ("link.traffic", ("mlx5_0/1", "sent")): 4_000,
    ("link.traffic", ("mlx5_0/1", "received")): 8_000,
    ("link.up", ("mlx5_0/1",)): 1,
    ("link.speed", ("mlx5_0/1",)): 50e9,
}


def test_a_sound_node_has_traffic_state_and_speed_of_its_ports(tmp_path: Path) -> None:
    infiniband(tmp_path)
    links = HostLinks(tmp_path)
    assert links.is_needed(())
    assert links.look(()) == STATE
    assert links.look(()) == STATE


def test_errors_count_from_the_agents_begin_on(tmp_path: Path) -> None:
    infiniband(tmp_path)
    links = HostLinks(tmp_path)
    links.look(())
    changed = {
        f"{PORT}/hw_counters/packet_seq_err": 15,
        "proc/self/net/snmp": SNMP.format(sent=1, again=39_400).strip(),
    }
    write(tmp_path, changed)
    grown = {
        ("link.errors", ("mlx5_0/1", "packet_seq_err")): 3,
        ("link.errors", ("TCP", "retransmitted segments")): 59,
    }
    assert links.look(()) == STATE | grown
    write(tmp_path, {f"{PORT}/hw_counters/packet_seq_err": 0})  # reset
    assert links.look(()) == STATE | grown


def test_a_lost_link_and_a_narrow_slot_have_series_until_the_end(tmp_path: Path) -> None:
    infiniband(tmp_path)
    links = HostLinks(tmp_path)
    links.look(())
    down = {f"{PORT}/state": "1: DOWN", f"{PORT}/rate": "2.5 Gb/sec (1X SDR)", f"{CARD}/current_link_width": 8}
    write(tmp_path, down)
    slot = ("slot.width", ("0000:1a:00.0", "mlx5_0"))
    assert links.look(()) == {("link.up", ("mlx5_0/1",)): 0, slot: 0.5}
    infiniband(tmp_path)
    assert links.look(()) == STATE | {slot: 1}
