"""Let a process end with the one that started it, also if that one is killed. Only on Linux."""

import ctypes
import os
import sys

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
"""prctl(2)."""


def end_with_parent(number: int, *, parent: int | None) -> None:
    """Let the kernel send this signal to this process when the thread that started it ends.

    A process whose `parent` has ended before this call ends here. The kernel forgets the request if the process runs a
    program with more rights, e.g. sudo.
    """
    control(PR_SET_PDEATHSIG, int(number))
    if sys.platform == "linux" and parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def control(option: int, value: int | bytes) -> None:
    """Call prctl(2) with one argument."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
