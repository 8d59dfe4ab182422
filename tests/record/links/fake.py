"""Hosts as trees of /sys and /proc, with the values of real ones."""

from collections.abc import Mapping
from pathlib import Path

BUS = "sys/devices/pci0000:15/0000:15:01.0"
CARD = f"{BUS}/0000:1a:00.0"
GPU_BUS = "sys/devices/pci0000:37/0000:37:01.0"
GPU = f"{GPU_BUS}/0000:3b:00.0"
PORT = "sys/class/infiniband/mlx5_0/ports/1"
SNMP = (
    "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs "
    "OutSegs RetransSegs InErrs OutRsts InCsumErrors\n"
    "Tcp: 1 200 120000 -1 80096 78425 1553 626 16 30410730 {sent} {again} 0 2256 0\n"
)
AER = "RxErr 0\nBadTLP {count}\nBadDLLP 0\nRollover 0\nTOTAL_ERR_COR {count}\n"


def write(root: Path, files: Mapping[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def infiniband(root: Path, **changed: object) -> None:
    """A ConnectX-7 at 400 Gb/s in a slot of 16 lanes, and an H100."""
    write(
        root,
        {
            f"{PORT}/rate": "400 Gb/sec (4X NDR)",
            f"{PORT}/state": "4: ACTIVE",
            f"{PORT}/phys_state": "5: LinkUp",
            f"{PORT}/link_layer": "InfiniBand",
            f"{PORT}/counters/port_xmit_data": 1_000,
            f"{PORT}/counters/port_rcv_data": 2_000,
            f"{PORT}/counters/port_xmit_packets": 500,
            f"{PORT}/counters/symbol_error": 7,
            f"{PORT}/counters/link_downed": 2,
            f"{PORT}/counters/port_xmit_wait": 123_456,
            f"{PORT}/hw_counters/packet_seq_err": 12,
            f"{PORT}/hw_counters/local_ack_timeout_err": 0,
            f"{PORT}/hw_counters/out_of_sequence": 99,
            **_slot(CARD, vendor="0x15b3", device="0x1021", kind="0x020700"),
            **_slot(GPU, vendor="0x10de", device="0x2330", kind="0x030200"),
            "proc/self/net/snmp": SNMP.format(sent=30_315_224, again=39_341).strip(),
        },
    )
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    for folder in (CARD, GPU):
        link = root / "sys/bus/pci/devices" / Path(folder).name
        if not link.is_symlink():
            link.symlink_to(root / folder)
    device = root / "sys/class/infiniband/mlx5_0/device"
    if not device.is_symlink():
        device.symlink_to(root / CARD)
    write(root, changed)


def _slot(folder: str, *, vendor: str, device: str, kind: str) -> dict[str, object]:
    speeds = {f"{name}_link_{what}": value for name in ("current", "max") for what, value in SPEEDS.items()}
    above = {f"{Path(folder).parent}/{name}": value for name, value in speeds.items()}
    own = {"vendor": vendor, "device": device, "class": kind, "aer_dev_correctable": AER.format(count=3).strip()}
    own |= {"aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0", "aer_dev_fatal": "TOTAL_ERR_FATAL 0"}
    return {**above, **{f"{folder}/{name}": value for name, value in (speeds | own).items()}}


SPEEDS = {"speed": "32.0 GT/s PCIe", "width": "16"}


def ethernet(root: Path, name: str, *, carrier: int = 1, hardware: bool = True, **counts: int) -> None:
    folder = f"sys/class/net/{name}"
    write(
        root,
        {
            f"{folder}/carrier": carrier,
            f"{folder}/speed": 25_000,
            f"{folder}/carrier_down_count": counts.get("carrier_down_count", 1),
            **{
                f"{folder}/statistics/{each}": counts.get(each, 0)
                for each in ("tx_bytes", "rx_bytes", "tx_packets", "rx_errors", "tx_errors", "rx_dropped")
            },
        },
    )
    if hardware:
        write(root, {f"{folder}/device/vendor": "0x8086", f"{folder}/device/device": "0x159b"})
