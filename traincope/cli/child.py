"""Run a command as if it had been typed instead of ours: same terminal, same signals, same exit code."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from traincope.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

SENT_BY_A_PROCESS = 0
"""Largest `si_code` of a signal that some process sent. The terminal's come from the kernel, to the child as well."""

KILLED = 128
"""What a shell adds to a signal's number to make an exit code of it."""


def run_child(command: Sequence[str], *, environment: Mapping[str, str]) -> int:
    """Its exit code, or 128 + the signal that ended it.

    Raises UsageError where it cannot be started.
    """
    watched = {signal.SIGCHLD, *FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        with _start(command, environment=environment, mask=before) as child:
            while child.poll() is None:
                received = signal.sigwaitinfo(watched)
                if received.si_signo != signal.SIGCHLD and received.si_code <= SENT_BY_A_PROCESS:
                    child.send_signal(received.si_signo)
            code = child.returncode
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return KILLED - code if code < 0 else code


def _start(
    command: Sequence[str], *, environment: Mapping[str, str], mask: set[int | signal.Signals]
) -> "subprocess.Popen[bytes]":
    """The signal mask is inherited, and so has to be put back in the child; we have no other thread."""
    try:
        return subprocess.Popen(
            command, env=environment, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        )
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {os.strerror(error.errno or 0)}") from error
