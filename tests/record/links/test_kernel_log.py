"""Errors in the kernel's log, through a text in place of the kernel's, and in the log of this host."""

import gc
import os
from pathlib import Path

import pytest

from traincope.events import KernelError
from traincope.record.links import kernel_log
from traincope.record.links.kernel_log import PREFIX, KernelLog, may_ask, read_log
from traincope.record.process.host_limits import ROOT

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."
OTHER = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0 (channel:0)"


class Kernel:
    """A kernel's log; None: without permission."""

    def __init__(self) -> None:
        self.text: str | None = "<6>[    0.000001] Linux version 6.8\n"

    def read(self) -> str | None:
        return self.text

    def write(self, line: str, *, prefix: str = "<3>[  514.090012] ") -> None:
        self.text = f"{self.text or ''}{prefix}{line}\n"


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def texts(log: KernelLog) -> list[str]:
    return [text for _, text in log.errors()]


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
@pytest.mark.parametrize("prefix", ["<3>[  514.090012] ", "<3>[  514.090012][   T81] ", "<3>"])
def test_lines_that_name_an_error_have_a_kind(kernel: Kernel, line: str, kind: KernelError | None, prefix: str) -> None:
    log = KernelLog(kernel.read)
    kernel.write(line, prefix=prefix)
    kernel.write("SUBSYSTEM=pci", prefix=prefix)
    assert list(log.errors()) == ([] if kind is None else [(kind, line)])
    assert list(log.errors()) == []


def test_lines_from_before_the_run_are_not_told(kernel: Kernel) -> None:
    kernel.write(XID)
    log = KernelLog(kernel.read)
    assert texts(log) == []
    kernel.write(XID)  # again, at the same time
    kernel.write(OTHER)
    assert texts(log) == [XID, OTHER]


def test_a_log_without_a_line_starts_with_the_first(kernel: Kernel) -> None:
    kernel.text = ""
    log = KernelLog(kernel.read)
    kernel.write(XID, prefix="<3>")
    assert texts(log) == [XID]


def test_of_a_log_that_was_cleared_or_has_too_many_lines_only_later_ones_are_new(kernel: Kernel) -> None:
    kernel.write(OTHER, prefix="<3>[  100.5] ")
    log = KernelLog(kernel.read)
    kernel.text = ""
    kernel.write(OTHER, prefix="<3>[  100.5] ")
    kernel.write(XID, prefix="<3>[  100.6] ")
    assert texts(log) == [XID]
    kernel.text = kernel.text.replace("[  100", "[ T 100")  # another format, so it is unknown what is new
    assert texts(log) == []
    kernel.write(XID, prefix="<3>")
    assert texts(log) == [XID]


def test_a_flood_is_cut_to_its_latest_lines(kernel: Kernel) -> None:
    log = KernelLog(kernel.read)
    for number in range(kernel_log.MAX_LINES + 5):
        kernel.write(f"NVRM: Xid {number}" + "x" * 300)
    found = texts(log)
    assert (len(found), found[0][:11]) == (kernel_log.MAX_LINES, "NVRM: Xid 5")
    assert {len(text) for text in found} == {kernel_log.MAX_CHARACTERS}


def test_a_log_that_may_not_be_read_has_no_lines(kernel: Kernel, tmp_path: Path) -> None:
    kernel.text = None
    log = KernelLog(kernel.read)
    assert texts(log) == []
    kernel.write(XID)  # from now on, it may be read: it is unknown when this line was written
    assert texts(log) == []
    kernel.write(OTHER)
    assert texts(log) == [OTHER]
    assert texts(KernelLog.open(tmp_path)) == []


@pytest.mark.parametrize(
    ("lines", "may"), [("Seccomp:\t0\nSeccomp_filters:\t0\n", True), ("", True), ("Seccomp:\t2\n", False)]
)
def test_a_thread_whose_system_calls_are_filtered_does_not_ask(tmp_path: Path, lines: str, may: bool) -> None:
    """The filter may end the process."""
    (tmp_path / "proc/thread-self").mkdir(parents=True)
    (tmp_path / "proc/thread-self/status").write_text(f"Name:\tpython\n{lines}")
    assert may_ask(tmp_path) == may


def test_the_log_of_this_host_has_a_new_line_and_is_not_kept_open() -> None:
    """The line names no error: other tests' runs on this host read it too."""
    before = os.listdir("/proc/self/fd")
    first = read_log()
    if first is None or not may_ask(ROOT) or not os.access("/dev/kmsg", os.W_OK):
        pytest.skip("the kernel's log may not be read and written here: a real log is NOT tested")
    line = f"test {os.getpid()} of traincope"
    assert line not in first
    Path("/dev/kmsg").write_text(f"{line}\n")
    now = read_log()
    assert now is not None
    assert [PREFIX.sub("", each, count=1) for each in now.splitlines()].count(line) == 1
    assert os.listdir("/proc/self/fd") == before


def test_a_look_leaves_nothing_to_the_garbage_collector() -> None:
    """A training may have switched it off."""
    read_log()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            read_log()
        assert gc.collect() < 10
    finally:
        gc.enable()
