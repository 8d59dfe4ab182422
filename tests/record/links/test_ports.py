"""One reading of a host's links, from trees with the values of real hosts, and from this host."""

from pathlib import Path

from tests.record.links.fake import BUS, CARD, GPU, PORT, ethernet, infiniband, write
from traincope.record.links.ports import Port, PortKind, Slot, find_slots, read_ports, read_slot


def test_a_port_of_infiniband_has_speed_lanes_traffic_and_errors(tmp_path: Path) -> None:
    infiniband(tmp_path)
    port, tcp = read_ports(tmp_path)
    assert port == Port(
        name="mlx5_0/1",
        kind=PortKind.INFINIBAND,
        card="0x15b3:0x1021",
        slot="0000:1a:00.0",
        is_up=True,
        bits_per_second=400_000_000_000,
        width=4,
        sent_bytes=4_000,
        received_bytes=8_000,
        sent_packets=500,
        errors={"symbol_error": 7, "link_downed": 2, "packet_seq_err": 12, "local_ack_timeout_err": 0},
    )
    assert tcp == Port(
        name="TCP", kind=PortKind.TCP, sent_packets=30_354_565, errors={"retransmitted segments": 39_341}
    )


def test_congestion_and_reordering_are_no_errors(tmp_path: Path) -> None:
    infiniband(tmp_path)
    errors = read_ports(tmp_path)[0].errors
    assert "port_xmit_wait" not in errors
    assert "out_of_sequence" not in errors


def test_a_port_over_ethernet_is_roce(tmp_path: Path) -> None:
    infiniband(tmp_path, **{f"{PORT}/link_layer": "Ethernet", f"{PORT}/rate": "200 Gb/sec (2X NDR)"})
    port = read_ports(tmp_path)[0]
    assert (port.kind, port.bits_per_second, port.width) == (PortKind.ROCE, 200_000_000_000, 2)


def test_an_elastic_fabric_adapter_counts_in_its_own_files(tmp_path: Path) -> None:
    folder = "sys/class/infiniband/rdmap79s0/ports/1"
    counts = {"tx_bytes": 9_000, "rx_bytes": 8_000, "tx_pkts": 3, "retrans_pkts": 1, "retrans_timeout_events": 0}
    write(tmp_path, {f"{folder}/hw_counters/{name}": count for name, count in counts.items()})
    write(tmp_path, {f"{folder}/rate": "100 Gb/sec (4X EDR)", f"{folder}/state": "4: ACTIVE"})
    (port,) = read_ports(tmp_path)
    assert (port.sent_bytes, port.received_bytes, port.sent_packets) == (9_000, 8_000, 3)
    assert port.errors == {"retrans_pkts": 1, "retrans_timeout_events": 0}


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    write(tmp_path, {f"{PORT}/link_layer": "InfiniBand"})
    (port,) = read_ports(tmp_path)
    assert port == Port(name="mlx5_0/1", kind=PortKind.INFINIBAND)


def test_interfaces_of_hardware_count_and_virtual_ones_do_not(tmp_path: Path) -> None:
    ethernet(tmp_path, "eth0", tx_bytes=10, rx_bytes=20, tx_packets=2, rx_errors=1, rx_dropped=500)
    ethernet(tmp_path, "docker0", hardware=False)
    ethernet(tmp_path, "lo", hardware=False)
    (port,) = read_ports(tmp_path)
    assert (port.name, port.kind, port.bits_per_second, port.card) == (
        "eth0",
        PortKind.ETHERNET,
        25_000_000_000,
        "0x8086:0x159b",
    )
    assert port.errors == {"rx_errors": 1, "tx_errors": 0, "carrier_down_count": 1}


def test_the_interface_of_a_container_counts_without_a_speed(tmp_path: Path) -> None:
    """A veth gives 10 Gb/s, whatever is below it."""
    ethernet(tmp_path, "eth0", hardware=False)
    ethernet(tmp_path, "eth1", carrier=0, hardware=False)
    ethernet(tmp_path, "lo", hardware=False)
    (port,) = read_ports(tmp_path)
    assert (port.name, port.is_up, port.bits_per_second) == ("eth0", True, None)


def test_an_interface_that_is_down_refuses_to_be_read(tmp_path: Path) -> None:
    ethernet(tmp_path, "eth0")
    write(tmp_path, {"sys/class/net/eth0/carrier": ""})
    assert read_ports(tmp_path)[0].is_up is False


def test_a_slot_can_do_what_both_its_ends_can(tmp_path: Path) -> None:
    """A card of generation 5 in a slot of generation 4 with 8 lanes is sound."""
    infiniband(
        tmp_path,
        **{
            f"{BUS}/max_link_speed": "16.0 GT/s PCIe",
            f"{BUS}/max_link_width": 8,
            f"{CARD}/current_link_speed": "16.0 GT/s PCIe",
            f"{CARD}/current_link_width": 8,
        },
    )
    card, gpu = (read_slot(*each) for each in find_slots(tmp_path))
    assert card == Slot(
        address="0000:1a:00.0",
        card="0x15b3:0x1021",
        holds="mlx5_0",
        transfers=16.0,
        width=8,
        max_transfers=16.0,
        max_width=8,
        errors={"corrected errors": 3, "uncorrected errors": 0},
    )
    assert (gpu.address, gpu.holds, gpu.transfers, gpu.width) == ("0000:3b:00.0", "GPU", 32.0, 16)


def test_unknown_speeds_of_a_slot_are_none(tmp_path: Path) -> None:
    """A virtual function has no link of its own, and a card that has fallen off the bus gives 255 lanes."""
    infiniband(
        tmp_path, **{f"{CARD}/current_link_speed": "Unknown", f"{CARD}/current_link_width": 255, f"{GPU}/vendor": "?"}
    )
    ((folder, holds),) = find_slots(tmp_path)
    slot = read_slot(folder, holds)
    assert (slot.transfers, slot.width) == (None, None)


def test_this_host_is_read() -> None:
    names = {port.name for port in read_ports()}
    assert "lo" not in names
    assert "TCP" in names


def test_a_host_without_links_has_none(tmp_path: Path) -> None:
    assert read_ports(tmp_path) == ()
    assert find_slots(tmp_path) == ()
