"""One reading of a host's links from /sys and /proc: network ports, TCP as a whole, and the slots of cards.

A file that is missing or unreadable gives None, or no count. Sources: Linux, Documentation/ABI
(stable/sysfs-class-infiniband, testing/sysfs-class-net-statistics, testing/sysfs-bus-pci-devices-aer_stats), and the
counters that the drivers of mlx5 and EFA name.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from traincope.record.process.host_limits import ROOT, read_counts

MAX_LINKS = 32
"""Most ports, and most slots, that are read."""
OCTETS = 4
"""Bytes per count of InfiniBand's counters of data."""

RETRANSMITTED = "retransmitted segments"
"""The one count of TCP: `RetransSegs` of /proc/net/snmp."""
CORRECTED, UNCORRECTED = "corrected errors", "uncorrected errors"
"""Counts of a slot: PCIe's Advanced Error Reporting."""

PORT_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
)
RDMA_ERRORS = (
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rx_icrc_encapsulated",
    "retrans_pkts",
    "retrans_timeout_events",
)
"""Counts of the sender, which sends again, and of wrong checksums. A receiver's `out_of_sequence` is left out: adaptive
routing makes it grow on sound networks. So are marks of congestion (`port_xmit_wait`, `*_cnp_*`, `*_ecn_*`).
"""
ETHERNET_ERRORS = ("rx_errors", "tx_errors", "tx_carrier_errors")
"""`rx_errors` contains wrong checksums. `rx_dropped` is left out: it also counts frames of protocols not in use."""
CARRIER_LOSSES, LINK_DOWNED = "carrier_down_count", "link_downed"

RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X)?")
SPEED = re.compile(r"[\d.]+")
UNKNOWN_WIDTHS = (0, 255)
GPU_CLASSES = ("0x0300", "0x0302")
"""Display and 3D controllers (PCI class codes)."""
GPU_VENDORS = ("0x10de", "0x1002")
GPU = "GPU"


class PortKind(StrEnum):
    """Kind of a port; the value is its name in the records."""

    INFINIBAND = "InfiniBand"
    ROCE = "RoCE"
    """RDMA over Ethernet: the link layer of the RDMA device is Ethernet."""
    ETHERNET = "Ethernet"
    TCP = "TCP"
    """Not a port: all TCP connections in the network namespace of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of the network. Counts are totals since an unknown time."""

    name: str
    """`mlx5_0/1` (device/port), the name of a network interface, or `TCP`."""
    kind: PortKind
    card: str = ""
    """Vendor and device of its card; empty without one."""
    slot: str = ""
    """PCI address of its card; empty without one."""
    is_up: bool | None = None
    bits_per_second: int | None = None
    """Speed of the link. None if it is unknown, and for interfaces without hardware, which have any number."""
    width: int | None = None
    """Number of lanes."""
    sent_bytes: int | None = None
    received_bytes: int | None = None
    sent_packets: int | None = None
    """Packets, or TCP's segments, also those sent again."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """The kernel's name of a count -> the count. Missing counts are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A card's link to the bus (PCIe)."""

    address: str
    card: str
    holds: str
    """`GPU`, or the network device of the card."""
    transfers: float | None
    """Current speed in GT/s. A GPU without work lowers it."""
    width: int | None
    max_transfers: float | None
    """Highest speed that both the card and the port above it can have."""
    max_width: int | None
    errors: Mapping[str, int]


def read_ports(root: Path = ROOT) -> tuple[Port, ...]:
    """Read all ports, and TCP. Interfaces without hardware count only where none has any, as in containers."""
    found = [*_rdma_ports(root), *_interfaces(root)][:MAX_LINKS]
    return (*found, *_tcp(root))


def _rdma_ports(root: Path) -> Iterator[Port]:
    for device in _entries(root / "sys/class/infiniband"):
        for folder in _entries(device / "ports"):
            rate = RATE.match(_text(folder / "rate"))
            state = _text(folder / "state")
            data = {name: _number(folder / "counters" / f"port_{name}") for name in ("xmit_data", "rcv_data")}
            ethernet = _text(folder / "link_layer") == "Ethernet"
            yield Port(
                name=f"{device.name}/{folder.name}",
                kind=PortKind.ROCE if ethernet else PortKind.INFINIBAND,
                card=_card(device / "device"),
                slot=_address(device),
                is_up="ACTIVE" in state if state else None,
                bits_per_second=None if rate is None else round(float(rate[1]) * 1e9),
                width=None if rate is None or rate[2] is None else int(rate[2]),
                sent_bytes=_bytes(data["xmit_data"], folder / "hw_counters/tx_bytes"),
                received_bytes=_bytes(data["rcv_data"], folder / "hw_counters/rx_bytes"),
                sent_packets=_first(folder / "counters/port_xmit_packets", folder / "hw_counters/tx_pkts"),
                errors=_counts(folder / "counters", PORT_ERRORS) | _counts(folder / "hw_counters", RDMA_ERRORS),
            )


def _interfaces(root: Path) -> Iterator[Port]:
    """Interfaces of hardware; without one, those that are up, except loopback."""
    folders = [folder for folder in _entries(root / "sys/class/net") if folder.name != "lo"]
    hardware = [folder for folder in folders if (folder / "device").exists()]
    for folder in hardware or folders:
        carrier, of_hardware = _text(folder / "carrier"), folder in hardware
        if not of_hardware and carrier != "1":
            continue
        megabits = _number(folder / "speed") if of_hardware else None
        yield Port(
            name=folder.name,
            kind=PortKind.ETHERNET,
            card=_card(folder / "device"),
            slot=_address(folder),
            is_up=carrier == "1" if (folder / "carrier").exists() else None,  # one that is down refuses to be read
            bits_per_second=megabits * 1_000_000 if megabits else None,
            sent_bytes=_number(folder / "statistics/tx_bytes"),
            received_bytes=_number(folder / "statistics/rx_bytes"),
            sent_packets=_number(folder / "statistics/tx_packets"),
            errors=_counts(folder / "statistics", ETHERNET_ERRORS) | _counts(folder, (CARRIER_LOSSES,)),
        )


def _tcp(root: Path) -> Iterator[Port]:
    lines = [line.split() for line in _text(root / "proc/self/net/snmp").splitlines() if line.startswith("Tcp:")]
    if len(lines) == 2:
        counts = dict(zip(*lines, strict=False))
        sent, again = counts.get("OutSegs", ""), counts.get("RetransSegs", "")
        if sent.isdecimal() and again.isdecimal():
            errors = {RETRANSMITTED: int(again)}
            total = int(sent) + int(again)  # Linux counts only what is sent for the first time as `OutSegs`
            yield Port(name=PortKind.TCP, kind=PortKind.TCP, sent_packets=total, errors=errors)


def find_slots(root: Path = ROOT) -> tuple[tuple[Path, str], ...]:
    """Return the folders of the GPUs' slots and of the network cards', each with what it holds."""
    found: dict[Path, str] = {}
    for kind in ("infiniband", "net"):
        for device in _entries(root / "sys/class" / kind):
            folder = device / "device"
            if (folder / "current_link_width").exists():
                found.setdefault(folder.resolve(), device.name)
    for folder in _entries(root / "sys/bus/pci/devices"):
        if _text(folder / "class").startswith(GPU_CLASSES) and _text(folder / "vendor") in GPU_VENDORS:
            found.setdefault(folder.resolve(), GPU)
    return tuple(found.items())[:MAX_LINKS]


def read_slot(folder: Path, holds: str) -> Slot:
    """Read one slot. What it can do is limited by the card and by the port above it."""
    speeds = [_transfers(each / "max_link_speed") for each in (folder, folder.parent)]
    widths = [_width(each / "max_link_width") for each in (folder, folder.parent)]
    corrected = _total(folder / "aer_dev_correctable")
    uncorrected = [_total(folder / f"aer_dev_{name}") for name in ("nonfatal", "fatal")]
    errors = {} if corrected is None else {CORRECTED: corrected}
    if None not in uncorrected:
        errors[UNCORRECTED] = sum(count for count in uncorrected if count is not None)
    return Slot(
        address=folder.name,
        card=_card(folder),
        holds=holds,
        transfers=_transfers(folder / "current_link_speed"),
        width=_width(folder / "current_link_width"),
        max_transfers=min((speed for speed in speeds if speed is not None), default=None),
        max_width=min((width for width in widths if width is not None), default=None),
        errors=errors,
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def _text(path: Path) -> str:
    """Return the file's content without white space at its ends; empty without it. Some refuse to be read."""
    try:
        return read_counts(str(path)).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None  # an unknown speed is -1


def _first(*paths: Path) -> int | None:
    return next((number for path in paths if (number := _number(path)) is not None), None)


def _bytes(octets: int | None, other: Path) -> int | None:
    return _number(other) if octets is None else octets * OCTETS


def _counts(folder: Path, names: tuple[str, ...]) -> dict[str, int]:
    return {name: count for name in names if (count := _number(folder / name)) is not None}


def _card(device: Path) -> str:
    return ":".join(filter(None, (_text(device / name) for name in ("vendor", "device"))))


def _address(device: Path) -> str:
    folder = device / "device"
    return folder.resolve().name if (folder / "current_link_width").exists() else ""


def _transfers(path: Path) -> float | None:
    speed = SPEED.match(_text(path))
    return None if speed is None else float(speed[0])


def _width(path: Path) -> int | None:
    width = _number(path)
    return None if width in UNKNOWN_WIDTHS else width


def _total(path: Path) -> int | None:
    """Return the count in the last line of AER's statistics, e.g. `TOTAL_ERR_COR 3`."""
    count = _text(path).rpartition(" ")[2]
    return int(count) if count.isdecimal() else None
