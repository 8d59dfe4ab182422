"""Who writes where: a process's rank directory, its names and groups, one writer a thread."""

import itertools
import json
import os
import sys
import threading
import time
import weakref
from importlib.metadata import version
from pathlib import Path
from time import monotonic_ns
from typing import Any

from traincope.events import CLEAN, FORMAT_VERSION, Kind
from traincope.record.identity import Identity, claim_rank_directory, process_group_rank, this_host
from traincope.record.names import LineFile, Names
from traincope.record.steps import Steps
from traincope.record.writer import SEGMENT_BYTES, Shared, ThreadWriter
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE, RUN_FILE

CLOCK_INTERVAL_NS = 1_000_000_000


class Recorder:
    """Everything the hooks of one process write through.

    While no process group has told the rank, records go to a provisional directory that `adopt`
    renames; the mapped files do not notice.
    """

    def __init__(self, run: Path, *, identity: Identity, disk_budget_bytes: int) -> None:
        """Raises OSError where the run directory cannot be written."""
        self.run = run
        self.identity = identity
        self.attempt = identity.first_attempt
        self.mesh: dict[str, int] = {}
        self.coords: dict[str, int] = {}
        self.settings: dict[str, Any] = {}
        self.probes: dict[str, str] = {}
        self.active = True
        self._owner_pid = os.getpid()
        self.main_thread = threading.get_ident()
        self._started_wall_ns = time.time_ns()
        self._last_clock_ns = 0
        self.directory = self._make_directory()
        segments = max(disk_budget_bytes // SEGMENT_BYTES, 2)
        self.shared = Shared(self.directory, segments_per_thread=segments)
        self.names = Names(self.directory / NAMES_FILE)
        self._groups = LineFile(self.directory / GROUPS_FILE)
        self._num_groups = 0
        self._writers: weakref.WeakSet[ThreadWriter] = weakref.WeakSet()
        """Of the threads that live: a job that makes threads all the time keeps nothing of those gone."""
        self._thread_numbers = itertools.count(1)
        self.main = self._add_writer("main")
        self.threads = _Threads(self, self.main)
        self.steps = Steps(self.main, self.shared)
        self.note()

    # -- writing ------------------------------------------------------------------------------

    def writer(self) -> ThreadWriter:
        """The calling thread's writer."""
        return self.threads.writer

    def event(self, name: str, details: dict[str, Any]) -> None:
        now = monotonic_ns()
        text = self.names.intern(json.dumps(details, default=str, sort_keys=True)) if details else 0
        self.writer().write(Kind.EVENT, now, now, name=self.names.intern(name), group=text)

    def add_group(self, *, key: str, axis: str, rule: str, ranks: tuple[int, ...]) -> int:
        """Write down a process group; returns its number in this rank's records."""
        self._groups.append({"key": key, "axis": axis, "rule": rule, "ranks": list(ranks)})
        self._num_groups += 1
        return self._num_groups - 1

    # -- identity -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Between two steps: what is due now and then, off the hot path."""
        now = monotonic_ns()
        if now - self._last_clock_ns > CLOCK_INTERVAL_NS:
            self._write_clock(now)
        self.adopt()

    def adopt(self) -> None:
        """Move from the provisional directory to the rank's own, once it is known which that is."""
        if self.identity.rank is not None or not self.active:
            return
        rank, world_size = process_group_rank() or (0, 1)
        old = self.identity
        self.identity = Identity(rank=rank, world_size=world_size, run_id=old.run_id, first_attempt=old.first_attempt)
        self.attempt, directory = claim_rank_directory(self.run, rank=rank, first_attempt=old.first_attempt)
        os.replace(self.directory, directory)
        self.directory = self.shared.directory = directory
        self.note()

    def note(self, **ending: Any) -> None:
        """Write `rank.json`, and `run.json` from rank 0 or where none is yet; both atomically."""
        host = this_host()
        _write_json(
            self.directory / RANK_FILE,
            {
                "version": FORMAT_VERSION,
                "rank": self.identity.rank or 0,
                "coords": self.coords,
                "host": host.name,
                "boot_id": host.boot_id,
                "pid": os.getpid(),
                "started_wall_ns": self._started_wall_ns,
                "probes": self.probes,
                **ending,
            },
        )
        if self.identity.rank is None:
            return
        path = self.run / RUN_FILE
        if self.identity.rank == 0 or not path.exists():
            _write_json(
                path,
                {
                    "version": FORMAT_VERSION,
                    "id": self.identity.run_id,
                    "world_size": self.identity.world_size,
                    "mesh": self.mesh,
                    "started_wall_ns": self._started_wall_ns,
                    "versions": _versions(),
                    "command": os.path.basename(sys.argv[0]) if sys.argv else "",
                    "settings": self.settings,
                },
            )

    # -- the end ------------------------------------------------------------------------------

    def close(self, *, ending: str) -> None:
        """Close every segment and say how it ended. After an exception the open step stays open."""
        if os.getpid() != self._owner_pid:
            return
        self.adopt()
        if ending == CLEAN:
            self.steps.finish()
        self._write_clock(monotonic_ns())
        self.active = False
        for writer in list(self._writers):
            writer.close()
            writer.latest = None
        self.names.close()
        self._groups.close()
        counts = {"events": self.shared.written, "dropped": self.shared.dropped}
        self.note(ending=ending, ended_wall_ns=time.time_ns(), recorder=counts)

    def abandon(self) -> None:
        """In a forked child: write nothing more into what the parent writes."""
        self.active = False
        for writer in list(self._writers):
            writer.abandon()

    def add_thread(self) -> ThreadWriter:
        """A writer for the calling thread, which has none yet; it closes its segment with the thread."""
        return self._add_writer(f"thread-{next(self._thread_numbers)}")

    def _add_writer(self, thread: str) -> ThreadWriter:
        writer = ThreadWriter(self.shared, thread=thread)
        if not self.active:
            writer.abandon()
        self._writers.add(writer)
        return writer

    def _make_directory(self) -> Path:
        if self.identity.rank is None:
            directory = self.run / f"provisional-{os.getpid()}-{time.time_ns()}"
            directory.mkdir(parents=True)
            return directory
        self.attempt, directory = claim_rank_directory(
            self.run, rank=self.identity.rank, first_attempt=self.identity.first_attempt
        )
        return directory

    def _write_clock(self, now: int) -> None:
        self._last_clock_ns = now
        self.main.write(Kind.CLOCK, now, now, value=time.time_ns())


class _Threads(threading.local):
    """`.writer` is the calling thread's; Python runs `__init__` anew in each thread that asks."""

    def __init__(self, recorder: Recorder, main: ThreadWriter) -> None:
        training_thread = recorder.main_thread == threading.get_ident()
        self.writer = main if training_thread else recorder.add_thread()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=1, default=str) + "\n")
    os.replace(temporary, path)


def _versions() -> dict[str, str]:
    versions = {"traincope": version("traincope"), "python": sys.version.split()[0]}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
    return versions
