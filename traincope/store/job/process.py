"""Identity of a rank's process, which no other process can share."""

import os
import platform
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from traincope.store.job.bell import FUTEX

STATE, PARENT, USER_TIME, SYSTEM_TIME, STARTED, STATUS = 0, 1, 11, 12, 19, 49
"""Fields of /proc/PID/stat, counted after the command's name (proc(5))."""
DEAD = frozenset("ZX")
FUTEX_COMMAND, FUTEX_PRIVATE = 0x7F, 0x80
"""Bits of its second argument: the command, and the mark of a lock that no other process has."""
FUTEX_WAITS = frozenset({0, 6, 9, 11})
"""Commands that wait: WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI."""
OWN_THREAD = "traincope"
WATCHERS = ("gloo_", "pt_gloo", "pt_nccl", "pt_tcpstore", "NCCL", "cuda", OWN_THREAD)
"""Begins of names of threads that serve communication, or the recorder: none of them releases a lock of the training's
thread outside of a collective.
"""
CRASHES = {
    Signals.SIGSEGV: "Segmentation fault",
    Signals.SIGABRT: "Aborted",
    Signals.SIGFPE: "Floating point exception",
    Signals.SIGBUS: "Bus error",
    Signals.SIGILL: "Illegal instruction",
}
"""Signals by which native code ends its process, with the words of `faulthandler`."""
PID_NAMESPACE = Path("/proc/self/ns/pid")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of one boot of one kernel. It does not depend on wall clocks, which can be set."""

    pid: int
    started_ticks: int
    """Clock ticks from the boot to the start of the process."""
    pid_namespace: int
    """Number of the namespace of the process id; each container has its own."""
    boot_id: str

    @classmethod
    def this(cls) -> "Process | None":
        """The calling process; None if the system has no /proc."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process of this host with the number now; None if none has it or the system has no /proc."""
        try:
            return cls(pid=pid, started_ticks=int(_stat(pid)[STARTED]), **_here())
        except (OSError, ValueError, IndexError):
            return None

    @classmethod
    def read(cls, raw: Any) -> "Process | None":
        """Decode `as_json`; None if it is damaged or missing."""
        if not isinstance(raw, dict):
            return None
        numbers = [raw.get(name) for name in ("pid", "started_ticks", "pid_namespace")]
        if any(type(number) is not int for number in numbers) or type(raw.get("boot_id")) is not str:
            return None
        pid, started_ticks, pid_namespace = map(int, numbers)  # type: ignore[arg-type]
        return cls(pid=pid, started_ticks=started_ticks, pid_namespace=pid_namespace, boot_id=raw["boot_id"])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def is_running(self) -> bool | None:
        """True if the process still runs; None if this cannot be known: another host, boot or container."""
        try:
            if (self.pid_namespace, self.boot_id) != tuple(_here().values()):
                return None
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # the process exists and belongs to another user
        except (OSError, OverflowError):
            return None
        try:
            fields = _stat(self.pid)
            return fields[STATE] not in DEAD and int(fields[STARTED]) == self.started_ticks
        except (OSError, ValueError, IndexError):
            return None  # it ended just now, or /proc hides the processes of other users

    def state(self) -> str:
        """The state's letter in /proc/PID/stat; empty if it cannot be read."""
        try:
            return _stat(self.pid)[STATE]
        except (OSError, IndexError):
            return ""

    def ended_by(self) -> Signals | None:
        """The signal that ended the process, as long as its parent has not asked for its status; None if unknown."""
        try:
            fields = _stat(self.pid)
            if fields[STATE] not in DEAD or int(fields[STARTED]) != self.started_ticks:
                return None
            return Signals(os.WTERMSIG(int(fields[STATUS])))
        except (OSError, ValueError, IndexError):
            return None

    def is_locked(self) -> bool:
        """True if it cannot go on by itself: each of its threads, without `WATCHERS`, waits for a lock of this process
        without a time limit, none ran between two looks at all of them, and no alarm has a handler. False also if this
        may not be read.
        """
        before = _lock_waits(self.pid)
        return bool(before) and not self.handles(Signals.SIGALRM) and before == _lock_waits(self.pid)

    def handles(self, signal: int) -> bool:
        """True if the process has a handler for the signal."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return False
        return bool(caught_signals(status) >> (signal - 1) & 1)

    def wait_channel(self) -> str:
        """Function of the kernel in which the main thread sleeps; empty if it runs or if this is hidden."""
        try:
            name = Path(f"/proc/{self.pid}/wchan").read_text(errors="replace").strip()
        except OSError:
            return ""
        return "" if name == "0" else name

    def system_call(self) -> str:
        """Number of the system call in which the main thread is; empty if it is in none or if this is hidden."""
        try:
            number = Path(f"/proc/{self.pid}/syscall").read_text().split()[0]
        except (OSError, IndexError):
            return ""
        return number if number.isdecimal() else ""

    def cpu_ns(self) -> int | None:
        """CPU time of all its threads so far; None if it cannot be read."""
        try:
            fields = _stat(self.pid)
            ticks = int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])
        except (OSError, ValueError, IndexError):
            return None
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def num_waits(self) -> int:
        """How often its main thread has gone to sleep so far; 0 if that cannot be read."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            (line,) = (line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches:"))
            return int(line.split()[1])
        except (OSError, ValueError):
            return 0

    def environment(self) -> dict[str, str] | None:
        """Its environment at its start; None if it may not be read."""
        try:
            words = Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        values = {name: value for name, sign, value in (word.partition("=") for word in words) if sign}
        return values or None

    def started_wall_seconds(self) -> float:
        """Wall time of its start. Raises OSError."""
        up_seconds = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - up_seconds + self.started_ticks / os.sysconf("SC_CLK_TCK")


def name_this_thread() -> None:
    """Give the calling thread of the recorder its name in the system, by which `is_locked` knows it."""
    with suppress(OSError):
        descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/comm", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, OWN_THREAD.encode())
        finally:
            os.close(descriptor)


def _lock_waits(pid: int) -> dict[str, tuple[str, ...]] | None:
    """Thread -> its wait and how often it has given up its processor; None if one of them does not wait for a lock."""
    waits = {}
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if (thread / "comm").read_text().startswith(WATCHERS):
                continue
            call = (thread / "syscall").read_text().split()
            if not _is_lock_wait(call):
                return None
            status = (thread / "status").read_text().splitlines()
            waits[thread.name] = (*call, *(line for line in status if "ctxt_switches" in line))
    except (OSError, ValueError, IndexError):
        return None
    return waits


def _is_lock_wait(call: Sequence[str]) -> bool:
    """`call`: as in /proc/PID/task/TID/syscall: its number and its arguments, of which the fourth is the time limit."""
    if call[0] != str(FUTEX.get(platform.machine())):
        return False
    operation, limit = int(call[2], 16), int(call[4], 16)
    return bool(operation & FUTEX_PRIVATE) and operation & FUTEX_COMMAND in FUTEX_WAITS and not limit


def children_of_all() -> dict[int, tuple[int, ...]]:
    """Process id -> ids of its children, of all processes that this one can see."""
    children: dict[int, tuple[int, ...]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                parent = int(_stat(int(path.name))[PARENT])
            except (OSError, ValueError, IndexError):
                continue  # it ended just now
            children[parent] = (*children.get(parent, ()), int(path.name))
    return children


def caught_signals(status: str) -> int:
    """Return the signals with a handler in C or in Python, from /proc/PID/status, as the kernel's bit mask.

    The lowest bit is signal 1.
    """
    (line,) = (line for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(line.split()[1], 16)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _here() -> dict[str, Any]:
    return {"pid_namespace": PID_NAMESPACE.stat().st_ino, "boot_id": BOOT_ID.read_text().strip()}
