"""A rank that ends."""

import os
import resource
import signal
import sys

from traincope.inject.kinds.fault import Arm, Fault, Injector, once

TOO_LARGE = 1 << 44
"""Bytes; no machine has them."""


class InjectedError(RuntimeError):
    """The exception of the fault `exception`."""


def _raise(injector: Injector) -> None:
    raise InjectedError(f"injected on rank {injector.rank}")


def _send(number: signal.Signals) -> Arm:
    return once(lambda _: os.kill(os.getpid(), number))


def _run_out_of_memory(_injector: Injector) -> None:
    """Ask torch for more than the GPU in use has, or than a limit of this process allows."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.empty(TOO_LARGE, dtype=torch.uint8, device="cuda")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), hard))
    torch.empty(TOO_LARGE, dtype=torch.uint8)


ENDS = (
    Fault(name="exception", what="the rank raises an exception", arm=once(_raise)),
    Fault(name="out_of_memory", what="the rank's memory is limited and runs out", arm=once(_run_out_of_memory)),
    Fault(name="sigkill", what="the rank's process is killed", arm=_send(signal.SIGKILL)),
    Fault(
        name="sigterm",
        what="the rank's process is told to end",
        arm=_send(signal.SIGTERM),
    ),
    Fault(name="exit_0", what="the rank's process exits at once, with code 0", arm=once(lambda _: os._exit(0))),
    Fault(
        name="leave_early",
        what="the rank ends its script with code 0 while others train",
        arm=once(lambda _: sys.exit(0)),
    ),
)
