"""The option `--on-hang`: end a job that hangs, so that a scheduler can start it again.

The node's agent decides that the job hangs. The command that started the job ends it.
"""

import argparse
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from traincope.errors import HangError, RunDirectoryError, UsageError
from traincope.record.instrumentation.guard import guard
from traincope.record.session.options import AGENT_VARIABLE, OFF, OFF_SWITCH
from traincope.store.job.hang_notices import HangNotice, read_notices
from traincope.store.job.manifests import read_rank_info
from traincope.store.job.process import Process
from traincope.store.layout import attempt_directory

logger = logging.getLogger(__name__)

ON_HANG_VARIABLE = "TRAINCOPE_ON_HANG"
REPORT, EXIT = "report", "exit"
POLL_SECONDS = 0.5
GRACE_SECONDS = 45.0
"""Time for the command to end. torchrun itself waits 30 s for its ranks before it kills them."""
RANK_GRACE_SECONDS = 5.0
"""Time for ranks that outlive their command, e.g. a shell script."""


def add_on_hang_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-hang",
        type=_checked,
        default=_default(os.environ),
        metavar=f"{{{REPORT},{EXIT}}}",
        help=f"if the job hangs, only report it, or end it with exit code {HangError.exit_code}, so that a scheduler "
        "can start it again: after 5 minutes with evidence that it cannot go on, or after TRAINCOPE_HANG_SECONDS "
        "(default: %(default)s)",
    )


class Running(Protocol):
    """A running command: one of `subprocess`, or that of `traincope run`."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises TimeoutExpired."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class HangExit:
    """Waits for a command, and ends it if its job hangs."""

    def __init__(self, runs: Callable[[], Iterable[Path]]) -> None:
        """`runs`: the run directories that the command's processes record in."""
        self._runs = runs
        self._since_wall_ns = time.time_ns()
        self.notice: HangNotice | None = None
        """The hang because of which the command was ended."""
        self._look = guard(self._new_hang)

    def wait(self, child: Running) -> int:
        """Return the child's exit code. It may have been ended here."""
        while (code := _wait(child, POLL_SECONDS)) is None:
            hang = self._look()
            if hang is not None:
                run, self.notice = hang
                return _end(child, attempt_directory(run, self.notice.attempt))
        return code

    def _new_hang(self) -> tuple[Path, HangNotice] | None:
        return next(((run, notice) for run in self._runs() for notice in self._new_notices(run)), None)

    def _new_notices(self, run: Path) -> Iterable[HangNotice]:
        with suppress(OSError):
            return [
                notice for notice in read_notices(run) if notice.ends_job and notice.at_wall_ns >= self._since_wall_ns
            ]
        return []


def hang_exit(on_hang: str, *, runs: Callable[[], Iterable[Path]], environment: Mapping[str, str]) -> HangExit | None:
    """None if a hang is only reported.

    Raises UsageError if the option asks for an end and no agent would notice a hang. If the variable asks for it, it is
    ignored, because a setting must not refuse a training.
    """
    if on_hang == REPORT:
        return None
    for variable in (OFF_SWITCH, AGENT_VARIABLE):
        if environment.get(variable, "").lower() in OFF:
            needs = f"needs the node's agent, which {variable}={environment[variable]} switches off"
            if environment.get(ON_HANG_VARIABLE) == EXIT:
                logger.warning("%s=%s is ignored: it %s", ON_HANG_VARIABLE, EXIT, needs)
                return None
            raise UsageError(f"--on-hang={EXIT} {needs}; unset the variable, or leave out the option")
    return HangExit(runs)


def _end(child: Running, attempt: Path) -> int:
    """End the command, then the ranks of this host that it leaves behind."""
    child.terminate()
    code = _wait(child, GRACE_SECONDS)
    if code is None:
        _signal_ranks(attempt, signal.SIGKILL)
        child.kill()
        return child.wait()
    until = time.monotonic() + RANK_GRACE_SECONDS
    _signal_ranks(attempt, signal.SIGTERM)
    while _running_ranks(attempt) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    _signal_ranks(attempt, signal.SIGKILL)
    return code


def _wait(child: Running, seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _signal_ranks(attempt: Path, number: signal.Signals) -> None:
    for process in _running_ranks(attempt):
        with suppress(OSError):
            os.kill(process.pid, number)


def _running_ranks(attempt: Path) -> list[Process]:
    """Processes that are certainly ranks of the attempt and run on this host."""
    ranks = []
    for directory in attempt.glob("rank-*"):
        with suppress(RunDirectoryError):
            process = read_rank_info(directory).process
            if process is not None and process.is_running():
                ranks.append(process)
    return ranks


def _default(environment: Mapping[str, str]) -> str:
    """The reaction by the variable; an unknown one is reported and ignored."""
    value = environment.get(ON_HANG_VARIABLE) or REPORT
    if value in (REPORT, EXIT):
        return value
    logger.warning("%s must be %s or %s, not %r: ignored", ON_HANG_VARIABLE, REPORT, EXIT, value)
    return REPORT


def _checked(text: str) -> str:
    if text not in (REPORT, EXIT):
        raise argparse.ArgumentTypeError(f"{text!r} is neither {REPORT} nor {EXIT}")
    return text
