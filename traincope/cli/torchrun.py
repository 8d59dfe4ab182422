"""torchrun, told to leave notes about who failed: `python -m traincope.cli.torchrun NOTES ARGUMENTS`.

torchrun prints failures for people, and those of an attempt that it restarts not even as a whole;
the launcher and the report need rank and exit code.
"""

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api as launcher

from traincope.store.launcher import LauncherNote, append_notes

KILLED = 128
"""What a shell adds to a signal's number to make an exit code of it."""
AGENT = "LocalElasticAgent"
"""The name in `torch.distributed.launcher.api` by which torchrun finds what watches the ranks."""
SECOND_NS = 1_000_000_000


def main(notes: Path, arguments: list[str]) -> int:
    setattr(launcher, AGENT, _noting_agent(notes))
    try:
        torchrun.run(torchrun.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError:
        return 1
    except SignalException as stopped:
        append_notes(notes, [_stopped(stopped.sigval)])
        return KILLED + int(stopped.sigval)
    return 0


def _noting_agent(notes: Path) -> type[LocalElasticAgent]:
    class NotingAgent(LocalElasticAgent):
        """Overrides what torchrun calls ten times a second; it answers with failures once an attempt."""

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            if result.is_failed():
                attempt = worker_group.spec.max_restarts - self._remaining_restarts
                append_notes(notes, _failed(result.failures, attempt=attempt))
            return result

    return NotingAgent


def _failed(failures: Mapping[int, ProcessFailure], *, attempt: int) -> list[LauncherNote]:
    """A note a rank, the culprit first."""
    return [
        LauncherNote(
            attempt=attempt,
            rank=rank,
            exit_code=failure.exitcode,
            first=position == 0,
            at_wall_ns=int(failure.timestamp) * SECOND_NS,
        )
        for position, (rank, failure) in enumerate(sorted(failures.items(), key=_suspicion))
    ]


def _suspicion(failed: tuple[int, ProcessFailure]) -> tuple[bool, int]:
    """Sorts the culprit first: who was killed, else who failed first.

    When a rank is killed its peers fail on the lost connection, and may be noticed before it.
    SIGTERM is mostly the agent's own, and an abort is what a peer's lost connection can end in. Of those
    that failed in the same second, the one noticed first comes first: the order of the failures.
    """
    failure = failed[1]
    killed = failure.exitcode < 0 and -failure.exitcode not in (signal.SIGTERM, signal.SIGABRT)
    return not killed, int(failure.timestamp)


def _stopped(by: Any) -> LauncherNote:
    return LauncherNote(attempt=0, rank=None, exit_code=-int(by), first=True, at_wall_ns=time.time_ns())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
