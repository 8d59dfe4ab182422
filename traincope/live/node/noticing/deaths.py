"""Ends of ranks' processes, as they happen.

At the first one, the other ranks write their stacks and torch's flight recorder: one for which it waited until its
time-out may be at work elsewhere, and the launcher ends them all within a fraction of a second. A process that a signal
ended left no record of that, so the signal is noted where the rank itself would have written its stacks. A thread waits
for the ends, whatever the agent does.
"""

import os
import select
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traincope.live.node.rank import RankTail
from traincope.private_files import private
from traincope.store.job.bell import ring
from traincope.store.job.process import CRASHES, Process
from traincope.store.layout import BELL_FILE, FATAL_FILE, signal_file

POLL_SECONDS = 1.0
"""Time after which ranks that began since then are waited for too."""
SENT = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers send."""
NO_STACK = "No stack: the agent of the node saw that the signal ended the process."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    directory: Path
    process: Process


class Deaths:
    """Waits for the ends of the ranks of this node."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        """Descriptor that becomes readable when the rank's process ends (pidfd_open(2)) -> the rank."""
        self._known: set[Path] = set()
        self._thread: threading.Thread | None = None

    def follow(self, tails: Iterable[RankTail]) -> None:
        """Wait for the ends of these ranks too."""
        for tail in tails:
            process = tail.info.process
            if tail.directory not in self._known and process is not None and tail.is_running():
                self._known.add(tail.directory)
                with suppress(OSError):
                    self._ranks[os.pidfd_open(process.pid)] = _Rank(directory=tail.directory, process=process)
        if self._ranks and self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="deaths", daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        has_rung = False
        while True:
            waiting = select.poll()
            for descriptor in tuple(self._ranks):
                waiting.register(descriptor, select.POLLIN)
            for descriptor, _ in waiting.poll(POLL_SECONDS * 1e3):
                rank = self._ranks.pop(descriptor)
                os.close(descriptor)
                with suppress(OSError):
                    _note(rank)
                if not has_rung:
                    self._ring()
                    has_rung = True

    def _ring(self) -> None:
        for rank in tuple(self._ranks.values()):
            with suppress(OSError):
                ring(rank.directory / BELL_FILE)


def _note(rank: _Rank) -> None:
    """Note a signal that ended the process, unless the rank wrote its stacks then. Raises OSError."""
    number = rank.process.ended_by()
    if number in CRASHES:
        name, text = FATAL_FILE, f"Fatal Python error: {CRASHES[number]}\n\n{NO_STACK}\n"
    elif number in SENT:
        name, text = signal_file(number.name), f"{NO_STACK}\n"
    else:
        return
    path = rank.directory / name
    if not path.exists() or not path.stat().st_size:
        with open(path, "w", opener=private) as file:
            file.write(text)
