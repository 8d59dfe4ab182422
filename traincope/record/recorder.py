"""Who writes where: a process's rank directory, its names and groups, one writer a thread."""

import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any

from traincope.events import CLEAN, FORMAT_VERSION, Flag, Kind
from traincope.record.guard import guard
from traincope.record.identity import Identity, this_host
from traincope.record.meeting import Meeting, Place
from traincope.record.names import Details, LineFile, Names
from traincope.record.steps import Steps
from traincope.record.surroundings import devices, environment, own_revision, versions
from traincope.record.whole import keep_room, write_json
from traincope.record.writer import SEGMENT_BYTES, Shared, ThreadWriter
from traincope.store.layout import DETAILS_FILE, GROUPS_FILE, NAMES_FILE, PROVISIONAL, RANK_FILE, RUN_FILE

Settled = Callable[[Place], object] | None
CLOCK_INTERVAL_NS = 1_000_000_000
MAX_WRITERS = 64
"""Threads that are recorded at the same time, for each takes two file descriptors, which are the training's too.
What others write is counted as dropped."""


class Recorder:
    """Everything the hooks of one process write through.

    Until it is known which rank of which run this is, records go to a provisional directory that
    `settle` renames; the mapped files do not notice.
    """

    def __init__(
        self, out: Path | None, *, root: Path, identity: Identity, disk_budget_bytes: int, settled: Settled = None
    ) -> None:
        """`out`: the run directory, or None to make one in `root`. Raises OSError where it cannot be written."""
        self.identity = identity
        self._settled = settled
        """Called once the rank knows its place, unless that is at the end."""
        self._out = out
        self._meeting = Meeting(out=out, root=root, identity=identity)
        self.place: Place | None = None
        """Where the records belong; None while they are in the provisional directory."""
        self._displaced = False
        """Whether the provisional directory could not be moved to its place: most likely somebody has removed it."""
        self.values_left_out = 0
        """Of `run.log()`, those that had not come from the GPU when the run ended, or were too many at once."""
        self.stalls_unmeasured = 0
        """Of the compute stream, those for which no event was left, or not over on the device when the run ended."""
        self.collectives_forgotten = 0
        """Those that were unfinished among so many others that a wait for them is not known as theirs any more."""
        self.mesh: dict[str, int] = {}
        self.coords: dict[str, int] = {}
        self.settings: dict[str, Any] = {}
        self.module_depth: int | None = None
        """How far below the root the modules lie that get spans; None: its blocks do."""
        self.told_axes: Mapping[str, str] = {}
        """Name or description of a process group -> the axis that it was told to be of."""
        self.probes: dict[str, str] = {}
        self.active = True
        self._between_steps: dict[Callable[[], None], Callable[[], None]] = {}
        """Listener -> the guard around it: one that fails keeps no other from its turn."""
        self._owner_pid = os.getpid()
        self.main_thread = threading.get_ident()
        self._started_wall_ns = time.time_ns()
        self._last_clock_ns = 0
        self.directory = self._make_provisional(out or root)
        segments = max(disk_budget_bytes // SEGMENT_BYTES, 2)
        self.shared = Shared(self.directory, segments_per_thread=segments)
        self.names = Names(self.directory / NAMES_FILE)
        self._details = Details(self.directory / DETAILS_FILE)
        self._groups = LineFile(self.directory / GROUPS_FILE)
        self._num_groups = 0
        self._writers: list[ThreadWriter] = []
        """One for each thread that ever wrote at the same time as the others."""
        self._thread_numbers = itertools.count(1)
        self._idle: deque[ThreadWriter] = deque()
        """Those of threads that are gone: the next new thread goes on with one."""
        self.main = self._add_writer("main")
        self.mute = ThreadWriter(self.shared, thread="")
        """Writes nothing, and counts it as dropped."""
        self.mute.abandon()
        self.threads = _Threads(self, self.main)
        self.steps = Steps(self.main, self.shared)
        keep_room(self.directory / RANK_FILE)
        self.note()
        self.settle()

    # -- writing ------------------------------------------------------------------------------

    def writer(self) -> ThreadWriter:
        """The calling thread's writer."""
        return self.threads.writer

    def event(self, name: str, details: dict[str, Any], *, given: bool = False) -> None:
        """`given`: by the training."""
        now = monotonic_ns()
        number = _number_details(self._details, details) if details else 0
        flags = Flag.GIVEN if given else 0
        self.writer().write(Kind.EVENT, now, now, name=self.names.intern(name), group=number or 0, flags=flags)

    def add_group(self, *, key: str, axis: str, rule: str, ranks: tuple[int, ...]) -> int:
        """Write down a process group; returns its number in this rank's records."""
        self.settle()
        number = self._num_groups
        self._num_groups += 1
        self._groups.append(number, json.dumps({"key": key, "axis": axis, "rule": rule, "ranks": list(ranks)}))
        return number

    # -- steps --------------------------------------------------------------------------------

    def before_work(self) -> None:
        """The calling thread fetches a batch, or runs a root module: that may begin a step.

        Only the training thread's work does: a prefetching thread works for a step to come.
        """
        if threading.get_ident() == self.main_thread and self.steps.before_work():
            self.tick()

    def between_steps(self, listener: Callable[[], None]) -> None:
        """Call `listener` at every boundary of steps, on the training thread; once, however often it is asked for."""
        self._between_steps.setdefault(listener, guard(listener))

    def no_longer(self, listener: Callable[[], None]) -> None:
        """Call it no more; also for one that is not called."""
        self._between_steps.pop(listener, None)

    @guard
    def tick(self) -> None:
        """Between two steps: what is due now and then, off the hot path."""
        now = monotonic_ns()
        if now - self._last_clock_ns > CLOCK_INTERVAL_NS:
            self._write_clock(now)
            for file in self._side_files:
                file.retry()
        self.settle(True)
        for listener in tuple(self._between_steps.values()):
            listener()

    # -- identity -----------------------------------------------------------------------------

    @property
    def run(self) -> Path | None:
        """The run directory, once it is known."""
        return self._out if self.place is None else self.place.run

    @property
    def world_size(self) -> int:
        return self.identity.world_size if self.place is None else self.place.world_size

    @guard
    def settle(self, without_group: bool = False, last_chance: bool = False) -> None:
        """Move from the provisional directory to the rank's own, if it is known by now which that is."""
        if self.place is not None or self._displaced or not self.active:
            return
        place = self._meeting.look(without_group=without_group)
        if place is None and last_chance:
            place = self._meeting.alone()
        if place is not None:
            self._move(place)

    def _move(self, place: Place) -> None:
        try:
            os.replace(self.directory, place.directory)
        except OSError:
            self._displaced = True
            _remove_empty(place.directory, place.directory.parent, place.run)
            raise
        self.directory = self.shared.directory = place.directory
        self.place = place
        self.note()
        if self._settled is not None:
            self._settled(place)

    def note(self, **ending: Any) -> None:
        """Write `rank.json`, and `run.json` from rank 0 or where none is yet; both atomically."""
        host = this_host()
        rank = self.identity.rank if self.place is None else self.place.rank
        write_json(
            self.directory / RANK_FILE,
            {
                "version": FORMAT_VERSION,
                "rank": rank or 0,
                "world_size": self.world_size,
                "coords": self.coords,
                "host": host.name,
                "boot_id": host.boot_id,
                "pid": os.getpid(),
                "device": devices(),
                "started_wall_ns": self._started_wall_ns,
                "probes": self.probes,
                **ending,
            },
            last=bool(ending),
        )
        if self.place is not None and self.place.rank == 0:
            write_json(self.place.run / RUN_FILE, self._describe_run())
        elif self.run is not None:
            write_json(self.run / RUN_FILE, self._describe_run(), only_new=True)

    def _describe_run(self) -> dict[str, Any]:
        place, identity = self.place, self.identity
        return {
            "version": FORMAT_VERSION,
            "id": place.run_id if place is not None else identity.run_id or "not known yet",
            "world_size": self.world_size,
            "mesh": self.mesh,
            "started_wall_ns": self._started_wall_ns,
            "versions": versions(),
            "environment": environment(os.environ),
            "git_revision": own_revision(),
            "command": os.path.basename(sys.argv[0]) if sys.argv else "",
            "settings": self.settings,
        }

    # -- the end ------------------------------------------------------------------------------

    def close(self, *, ending: str, with_process: bool = False) -> None:
        """Close every segment, say how it ended and whether with the process. An exception leaves its step open."""
        if os.getpid() != self._owner_pid:
            return
        self._settled = None
        self.settle(True, True)
        if ending == CLEAN:
            self.steps.finish()
        self._write_clock(monotonic_ns())
        self.active = False
        for writer in list(self._writers):
            writer.close()
            writer.latest = None
        for file in self._side_files:
            file.close()
        self.note(ending=ending, with_process=with_process, ended_wall_ns=time.time_ns(), recorder=self._counts())

    def _counts(self) -> dict[str, int]:
        return {
            "events": self.shared.written,
            "dropped": self.shared.dropped,
            "lost_lines": sum(file.lost for file in self._side_files),
            "names_refused": self.names.refused,
            "details_refused": self._details.refused,
            "values_left_out": self.values_left_out,
            "stalls_unmeasured": self.stalls_unmeasured,
            "collectives_forgotten": self.collectives_forgotten,
        }

    def abandon(self) -> None:
        """In a forked child: write nothing more into what the parent writes."""
        self.active = False
        for writer in list(self._writers):
            writer.abandon()

    def lease_writer(self) -> "_Lease":
        """A writer for the calling thread, which has none yet, until that thread is gone."""
        try:
            return _Lease(self._idle.popleft(), self._idle)
        except IndexError:
            if len(self._writers) < MAX_WRITERS:
                return _Lease(self._add_writer(f"thread-{next(self._thread_numbers)}"), self._idle)
            return _Lease(self.mute, deque())

    @property
    def _side_files(self) -> tuple[LineFile, ...]:
        return self.names.file, self._details.file, self._groups

    def _add_writer(self, thread: str) -> ThreadWriter:
        writer = ThreadWriter(self.shared, thread=thread)
        if not self.active:
            writer.abandon()
        self._writers.append(writer)
        return writer

    def _make_provisional(self, parent: Path) -> Path:
        directory = parent / f"{PROVISIONAL}{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
        directory.mkdir(parents=True)
        return directory

    def _write_clock(self, now: int) -> None:
        self._last_clock_ns = now
        self.main.write(Kind.CLOCK, now, now, value=time.time_ns())


class _Threads(threading.local):
    """`.writer` is the calling thread's; Python runs `__init__` anew in each thread that asks."""

    def __init__(self, recorder: Recorder, main: ThreadWriter) -> None:
        if recorder.main_thread == threading.get_ident():
            self.writer = main
        else:
            self.writer = recorder.mute  # for the collector, which may run, and want to write, meanwhile
            self._lease = recorder.lease_writer()
            self.writer = self._lease.writer


class _Lease:
    """Dies with its thread, and gives the writer back: the next new thread goes on in the same segment."""

    __slots__ = ("_idle", "writer")

    def __init__(self, writer: ThreadWriter, idle: deque[ThreadWriter]) -> None:
        self.writer = writer
        self._idle = idle

    def __del__(self) -> None:
        self.writer.latest = None
        self._idle.append(self.writer)


def _remove_empty(*directories: Path) -> None:
    """From the innermost on, as far as they are."""
    with suppress(OSError):
        for directory in directories:
            directory.rmdir()


@guard
def _number_details(details: Details, values: dict[str, Any]) -> int:
    """What cannot be written (a `repr` that raises) costs the details, not the event."""
    return details.add(values)
