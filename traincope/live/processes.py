"""Whether a process is still the one it was."""

import os
import time
from pathlib import Path

PROC = Path("/proc")
SECOND_NS = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")
STATE, STARTED = 0, 19
"""Fields of /proc/PID/stat, counted behind the command's name (proc(5))."""
DEAD = frozenset("ZX")
SLACK_NS = 2 * SECOND_NS
"""The start is told in ticks since a boot whose instant is told in seconds."""


def is_running(pid: int, *, since_wall_ns: int) -> bool:
    """Whether `pid` is there, and was already at that instant: a number is given again to somebody else."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True  # somebody keeps /proc from us: nothing says that it ended
    began_wall_ns = _boot_wall_ns() + int(fields[STARTED]) * SECOND_NS // TICKS
    return fields[STATE] not in DEAD and began_wall_ns <= since_wall_ns + SLACK_NS


def _boot_wall_ns() -> int:
    """As /proc/stat has it, which takes a millisecond to read on a machine of very many cores."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
