"""Stacks and torch's flight recorder on request: the latest collectives of all groups, also in steps without detail.

A thread sleeps at the rank's bell, in a system call without Python's lock and without a descriptor. Then it writes the
stacks of all threads and what torch holds. The node's agent asks while the job stands still. A run that ends by an
exception writes the flight recorder too. The thread needs the lock for its answer: a rank that hangs in C with the lock
held gives none. With the lock, no thread changes its frames while they are read.

The agent also asks once another rank of the node dies: the launcher will end the others within a fraction of a second,
while they wait for it, or while it had waited for one of them.

At the end of the run, torch's count of each group is recorded.
"""

import faulthandler
import json
import os
import threading
import time
from pathlib import Path

from traincope.private_files import held, open_regular
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.own_threads import OwnThread
from traincope.record.instrumentation.torch_private import flight_recorder, group_ranks
from traincope.record.session.recorder import Recorder
from traincope.store.job.bell import Bell, take
from traincope.store.job.process import name_this_thread
from traincope.store.layout import BELL_FILE, FLIGHT_FILE, STACKS_FILE

JOIN_SECONDS = 1.0
WAKE_SECONDS = 0.01
"""Time after which a thread that was not asleep yet is woken again."""
NOTHING_SECONDS = 1.0
"""Pause after a wake-up without a request. A file in place of the bell's does not keep the thread awake."""

_installed: "set[FlightRecorder]" = set()


class FlightRecorder:
    """Hook that answers requests for the flight recorder."""

    name = "flight_recorder"
    level = 0

    def __init__(self) -> None:
        self._thread: OwnThread | None = None
        self._pid = 0
        self._ends = False
        self._writing = threading.Lock()
        """A rank's death ends runs of others by an exception, and both write the file."""

    def install(self, recorder: Recorder) -> None:
        """Raises OSError if the file cannot be mapped, AttributeError if this torch has no flight recorder."""
        self._recorder, self._dump, self._pid = recorder, flight_recorder(), os.getpid()
        self._bell = Bell(recorder.directory / BELL_FILE)
        _installed.add(self)
        self._thread = OwnThread(guard(self._serve))
        self._thread.start()

    def remove(self) -> None:
        """End the thread. A forked child has none."""
        _installed.discard(self)
        if self._thread is None or os.getpid() != self._pid:
            return
        guard(self._note_counts)()
        self._ends, until = True, time.monotonic() + JOIN_SECONDS
        while self._thread.is_alive() and time.monotonic() < until:
            self._bell.wake()
            self._thread.join(WAKE_SECONDS)
        with suppressed(OSError):
            (self._recorder.directory / BELL_FILE).unlink()
        self._thread = None

    def write(self) -> None:
        """Write the file, as on request."""
        if os.getpid() == self._pid:
            guard(self._write)(self._recorder.directory)

    def _note_counts(self) -> None:
        """Record how many collectives the rank issued on each group: one that left one out ends before the others."""
        entries = json.loads(self._dump()).get("entries", ())
        counts = {
            str(entry["process_group"][0]): int(entry["collective_seq_id"])
            for entry in entries
            if not entry.get("is_p2p")
        }
        self._recorder.issued_collectives = counts

    def _serve(self) -> None:
        name_this_thread()
        answer = guard(self._answer)
        while True:
            self._bell.wait()
            if self._ends:
                return
            if take(self._recorder.directory / BELL_FILE):
                answer(self._recorder.directory)
            else:
                time.sleep(NOTHING_SECONDS)

    def _answer(self, directory: Path) -> None:
        """Append the stacks to their file, then replace the flight recorder's: a new one shows that both are there."""
        with held(open_regular(directory / STACKS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)) as descriptor:
            faulthandler.dump_traceback(descriptor, all_threads=True)
        self._write(directory)

    def _write(self, directory: Path) -> None:
        """Replace the file as a whole. torch's text is not parsed: new objects might start a garbage collection."""
        head = json.dumps({"at_ns": time.monotonic_ns(), "groups": group_ranks()})
        new = directory / f"{FLIGHT_FILE}.new"
        with self._writing:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with held(open_regular(new, flags)) as descriptor, open(descriptor, "wb", closefd=False) as file:
                file.write(head.encode().removesuffix(b"}") + b', "trace": ' + self._dump() + b"}")
            new.replace(directory / FLIGHT_FILE)


def write_last() -> None:
    """Write the flight recorder of a run that ends by an error: its last collectives may differ from the others'."""
    for hook in tuple(_installed):
        hook.write()


def _forked() -> None:
    """Forget the hooks in a forked child: it is not the rank, and has no thread of theirs."""
    _installed.clear()


os.register_at_fork(after_in_child=_forked)
