"""Limits that the host sets: the cores of a thread, the CPU quota of its cgroups, and their memory.

A process in a container may see the files of its own cgroup as those of the root. A quota can be set on each cgroup
above a process: the smallest that is visible limits it. Missing files count as no limit.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
CPU_CONTROLLER = "cpu"
SMALL_FILE = 4096
"""Most bytes of a file of counts that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    """A limit of CPU time per period, of a cgroup of this process."""

    cores: float
    """CPU time per time: 1.5 is one and a half cores."""
    period_ns: int
    counts: str
    """The file with its counts of periods."""

    def throttled_ns(self) -> int:
        """Return the total length of the periods in which the cgroup used up its quota. Raises OSError."""
        for line in read_counts(self.counts).splitlines():
            name, _, value = line.partition(" ")
            if name == "nr_throttled":
                return int(value) * self.period_ns
        raise FileNotFoundError(f"{self.counts} has no nr_throttled")


def allowed_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that the calling thread may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_quota(root: Path = ROOT) -> CpuQuota | None:
    """Return the smallest quota of this process's cgroups; None without one."""
    quotas = (_quota(folder) for folder in _cgroups(root, CPU_CONTROLLER))
    return min((quota for quota in quotas if quota is not None), key=lambda quota: quota.cores, default=None)


def memory_pressure_file(root: Path = ROOT) -> str | None:
    """Return the file with the stalls by missing memory: of the process's cgroup, or else of the host."""
    own = [folder / "memory.pressure" for folder in _cgroups(root, "")]
    return next((str(path) for path in [*own, root / "proc/pressure/memory"] if _text(path)), None)


def memory_stall_ns(pressure: str) -> int:
    """Return how long at least one thread there stood still until memory was free, in ns. Raises OSError."""
    return int(read_counts(pressure).splitlines()[0].rpartition("total=")[2]) * 1_000


def host_idle_ns(root: Path = ROOT) -> int:
    """Return the idle time of all cores of the host together, since it started. Raises OSError."""
    return int(float(read_counts(str(root / "proc/uptime")).split()[1]) * 1e9)


def read_counts(path: str) -> str:
    """Read a small file of the kernel. No file stays open, which the training might close. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, SMALL_FILE).decode()
    finally:
        os.close(file)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroups, from its own up to the root. Version 2 has an empty controller."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        own = Path(path.lstrip("/"))
        yield from (
            root / "sys/fs/cgroup" / controllers / each for each in (own, *own.parents) if ".." not in each.parts
        )


def _quota(folder: Path) -> CpuQuota | None:
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if not (quota.isdecimal() and period.isdecimal()):  # "max", or -1
        return None
    return CpuQuota(cores=int(quota) / int(period), period_ns=int(period) * 1_000, counts=str(folder / "cpu.stat"))


def _text(path: Path) -> str:
    """Return the file's content; empty without it."""
    try:
        return read_counts(str(path))
    except OSError:
        return ""
