"""torchrun that writes notes on failed ranks: `python -m traincope.cli.launch.torchrun_child NOTES ARGUMENTS`.

torchrun prints failures only as text, and incompletely for an attempt that it restarts. The launcher and the report
need rank and exit code. This torchrun ends its ranks and itself when the launcher ends.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api as launcher

from traincope.cli.launch.worker_exit import end_with_starter
from traincope.cli.screen import make_safe
from traincope.engine.launch import PARENT_VARIABLE
from traincope.store.job.launcher import FIRST_ATTEMPT_VARIABLE, SECOND_NS, LauncherNote, append_notes, culprit_first

KILLED = 128
"""A shell's exit code after a signal is 128 + the signal's number."""
AGENT = "LocalElasticAgent"
"""Name in `torch.distributed.launcher.api` of the class that watches the ranks for torchrun."""

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""torchrun's own variable: at these signals it ends its ranks, and gives them the same signal."""


def main(notes: Path, arguments: list[str]) -> int:
    make_safe()
    end_with_starter(signal.SIGTERM)
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    agent = _noting_agent(notes)
    setattr(launcher, AGENT, agent)
    try:
        torchrun.run(torchrun.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError:
        return 1
    except _Interrupted:
        append_notes(notes, [_stopped(signal.SIGINT, attempt=agent.attempt)])
        return KILLED + signal.SIGINT
    except SignalException as stopped:
        append_notes(notes, [_stopped(stopped.sigval, attempt=agent.attempt)])
        return KILLED + int(stopped.sigval)
    return 0


class _Interrupted(SignalException):
    """Ctrl-C. The ranks ignore it and get SIGTERM, which also ends one that waits for another, without a traceback."""


class _Agent(LocalElasticAgent):
    attempt = 0
    """The attempt that it watches now."""

    def _start_workers(self, *args: Any, **kwargs: Any) -> dict[int, Any]:
        """Answer Ctrl-C once the ranks have inherited that it is ignored."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ[SIGNALS_VARIABLE] = "SIGTERM,SIGHUP,SIGQUIT"  # torchrun has put its own list there
        ranks: dict[int, Any] = super()._start_workers(*args, **kwargs)
        signal.signal(signal.SIGINT, _interrupt)
        return ranks


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the launcher sends both while this end goes on
        signal.signal(number, signal.SIG_IGN)
    logging.disable()  # torchrun's lines on each rank that it ends
    raise _Interrupted("Ctrl-C", sigval=signal.SIGTERM)


def _noting_agent(notes: Path) -> type[_Agent]:
    class NotingAgent(_Agent):
        """Overrides the method that torchrun calls ten times per second. It returns failures once per attempt."""

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            restarts = worker_group.spec.max_restarts - self._remaining_restarts
            NotingAgent.attempt = int(os.environ.get(FIRST_ATTEMPT_VARIABLE, "0")) + restarts
            if result.is_failed():
                append_notes(notes, _failed(result.failures, attempt=self.attempt))
            return result

    return NotingAgent


def _failed(failures: Mapping[int, ProcessFailure], *, attempt: int) -> tuple[LauncherNote, ...]:
    """One note per failed rank, the culprit first. The agent has noticed the failures now."""
    now = time.time_ns()
    return culprit_first(
        [
            LauncherNote(
                attempt=attempt,
                rank=rank,
                exit_code=failure.exitcode,
                first=False,
                at_wall_ns=int(failure.timestamp) * SECOND_NS,
                noticed_wall_ns=now,
            )
            for rank, failure in failures.items()
        ]
    )


def _stopped(by: Any, *, attempt: int) -> LauncherNote:
    return LauncherNote(attempt=attempt, rank=None, exit_code=-int(by), first=True, at_wall_ns=time.time_ns())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
