"""Errors in the kernel's log, through a pipe in place of /dev/kmsg."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from traincope.events import KernelError
from traincope.record.links.kernel_log import KernelLog


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A root with an empty log, and a file to write to it."""
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    writer = os.open(tmp_path / "dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
    yield tmp_path, writer
    os.close(writer)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.", KernelError.XID),
        ("Out of memory: Killed process 4711 (python) total-vm:1kB", KernelError.OUT_OF_MEMORY),
        ("Memory cgroup out of memory: Killed process 4711 (python)", KernelError.OUT_OF_MEMORY),
        ("pcieport 0000:15:01.0: AER: Uncorrectable (Fatal) error message received", KernelError.BUS),
        ("mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal)", KernelError.BUS),
        ("mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 0: f600", KernelError.MACHINE_CHECK),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0 (channel:0)", KernelError.MACHINE_CHECK),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", KernelError.TRANSMIT_TIMEOUT),
        ("pcieport 0000:15:01.0: AER: Corrected error message received from 0000:1a:00.0", None),
        ("mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", None),
        ("mce: [Hardware Error]: Machine check events logged", None),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0 (channel:0)", None),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready", None),
    ],
)
def test_lines_that_name_an_error_have_a_kind(kernel: tuple[Path, int], line: str, kind: KernelError | None) -> None:
    root, writer = kernel
    log = KernelLog.open(root)
    os.write(writer, f"3,812,5140900,-;{line}\n SUBSYSTEM=pci\n".encode())
    assert list(log.errors()) == ([] if kind is None else [(kind, line)])
    assert list(log.errors()) == []
    log.close()


def test_a_log_that_may_not_be_read_has_no_lines(tmp_path: Path) -> None:
    log = KernelLog.open(tmp_path)
    assert not log.is_open
    assert list(log.errors()) == []
    log.close()


def test_a_file_that_took_the_place_of_the_log_is_neither_read_nor_closed(
    kernel: tuple[Path, int], tmp_path: Path
) -> None:
    """A training may close all files that it does not know, and open its own."""
    root, writer = kernel
    log = KernelLog.open(root)
    (number,) = {int(file) for file in os.listdir("/proc/self/fd") if _is_kmsg(file)} - {writer}
    (tmp_path / "data").write_text("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79\n")
    own = os.open(tmp_path / "data", os.O_RDONLY)
    os.dup2(own, number)
    assert list(log.errors()) == []
    log.close()
    assert os.read(number, 1) == b"3"
    os.close(number)
    os.close(own)


def _is_kmsg(file: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{file}").endswith("dev/kmsg")
    except OSError:
        return False
