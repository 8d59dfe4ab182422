"""A rank that stands still for ever, and groups of ranks that wait for each other."""

import ctypes
import os
import signal
import threading
import time
from typing import Any

from traincope.inject.kinds.fault import Fault, Injector, every_rank, once, once_everywhere

FOR_EVER = 1_000_000
"""Seconds."""
MUTEX_BYTES = 64
"""At least the size of a `pthread_mutex_t`; zeros are an unlocked one."""


def _lock(_injector: Injector) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _loop(_injector: Injector) -> None:
    while True:
        pass


def _hold_the_gil(_injector: Injector) -> None:
    """Lock a mutex twice. Unlike a `sleep` in C, no signal ends that wait."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(MUTEX_BYTES)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _deadlock(injector: Injector) -> None:
    """Even ranks wait in one group first, odd ranks in the other."""
    import torch.distributed as dist

    groups: list[Any] = [None, injector.group]
    for group in groups if injector.rank % 2 == 0 else reversed(groups):
        dist.barrier(group)


STUCK = (
    Fault(name="sleep", what="the rank sleeps for ever", arm=once(lambda _: time.sleep(FOR_EVER))),
    Fault(name="lock", what="the rank waits for a lock that nobody releases", arm=once(_lock)),
    Fault(name="loop", what="the rank runs an endless loop in Python", arm=once(_loop)),
    Fault(name="gil", what="the rank stands still in C and keeps Python's lock", arm=once(_hold_the_gil)),
    Fault(
        name="sigstop",
        what="the rank's process is stopped",
        arm=once(lambda _: os.kill(os.getpid(), signal.SIGSTOP)),
    ),
    Fault(
        name="deadlock",
        what="even and odd ranks enter two groups in opposite order",
        arm=once_everywhere(_deadlock),
        culprits=every_rank,
        needs_group=True,
    ),
)
