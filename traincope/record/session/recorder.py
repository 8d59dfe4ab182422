"""The recorder of one process: its rank directory, its names and groups, and one writer per thread."""

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from time import monotonic_ns
from typing import Any

from traincope.events import BLOCK_STEPS, CLEAN, FORMAT_VERSION, Flag, Kind
from traincope.native.library import Cell, Library
from traincope.private_files import make_directory
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.segments.names import Details, LineFile, Names
from traincope.record.segments.native_place import NativePlace
from traincope.record.segments.slots import Slot
from traincope.record.segments.writer import SEGMENT_BYTES, Shared, ThreadWriter
from traincope.record.session.control import Control
from traincope.record.session.environment import allowed_variables, devices, training_revision, versions
from traincope.record.session.identity import Identity, this_host, this_node
from traincope.record.session.rendezvous import Place, Rendezvous
from traincope.record.session.steps import Steps
from traincope.store.job.process import Process
from traincope.store.layout import DETAILS_FILE, GROUPS_FILE, NAMES_FILE, PROVISIONAL, RANK_FILE, RUN_FILE
from traincope.whole_files import reserve, write_json

Settled = Callable[[Place], object] | None
Listeners = dict[Callable[[], None], Callable[[], None]]
"""Listener -> the guard around it, so that a failing listener does not stop the others."""
WhenDue = Callable[[], int | None]
"""A listener that returns the next step in which it has something to do; None: it looks at the next one itself."""
Prepare = Callable[[bool], bool]
"""Prepare for a block of steps, whose detail is wanted or not. Returns whether its detail can be recorded."""
NativePhase = Callable[[int, int, dict[tuple[int, int], Slot], tuple[int, int]], Slot | None]
"""Phase, name, and the place of the slot, where it is also if an exception of the training's comes before its return.
A false value: the thread's writer has to open the record.
"""
DETAILED = int(Cell.DETAILED)
CLOCK_INTERVAL_NS = 1_000_000_000
MAX_WRITERS = 64
"""Maximum number of threads that are recorded at the same time.

Each takes disk space and memory, which are the training's too. Records of further threads count as dropped.
"""


class Recorder:
    """The object through which every hook of a process writes.

    Until the rank and the run are known, records go to a provisional directory. `settle` renames it; the mapped files
    are not affected.
    """

    def __init__(
        self,
        out: Path | None,
        *,
        root: Path,
        identity: Identity,
        disk_budget_bytes: int,
        on_settled: Settled = None,
        witness: bool = False,
        named: Path | None = None,
        for_store: bool = False,
    ) -> None:
        """`out`: the run directory, or None to create one in `root`. `witness`: agents keep copies for each other.
        `named` and `for_store`: as in `Rendezvous`.

        Raises OSError if the directory cannot be written.
        """
        self.identity = identity
        self._on_settled = on_settled
        """Called once the rank knows its place, unless that is at the end of the run."""
        self._out, self._named = out, named
        self._rendezvous = Rendezvous(
            out=out, root=root, identity=identity, witness=witness, named=named, for_store=for_store
        )
        self.place: Place | None = None
        """The place of the records. None while they are in the provisional directory."""
        self._settling = threading.Lock()
        self._first_work_thread: int | None = None
        """The thread that did the latest work before the first backward."""
        self._moving = threading.Lock()
        """Taken by the thread that becomes the training thread."""
        self._displaced = False
        """True if the provisional directory stays where it is: most likely it was or will be removed, or the process
        ends before it trains.
        """
        self.values_left_out = 0
        """Values of `run.log()` that had not arrived from the GPU when the run ended, or were too many at once."""
        self.stalls_unmeasured = 0
        """Pairs of marks on the compute stream without a free event, or unfinished on the device when the run ended."""
        self.collectives_forgotten = 0
        """Unfinished collectives that were dropped because too many others were pending.

        A wait for one is not recorded.
        """
        self.issued_collectives: dict[str, int] = {}
        """torch's name of a group -> its count of collectives on it, at the end of the run."""
        self.mesh: dict[str, int] = {}
        self.coords: dict[str, int] = {}
        self.settings: dict[str, Any] = {}
        self.links: dict[str, dict[str, Any]] = {}
        """Links of the host; empty on ranks that do not read them. See `RankInfo.links`."""
        self.cpu_limits: dict[str, Any] = {}
        """Limits of the training thread; empty while unknown. See `RankInfo.cpu_limits`."""
        self.level: int | None = None
        """Level of recording, once hooks are installed."""
        self.control = Control()
        """Requests to this running job."""
        self.budget: float | None = None
        """Largest share of a step that the recorder may take on average. None: no limit."""
        self.resets_memory_peaks = False
        """True if the recorder may reset the peak counter of torch's allocator on a GPU."""
        self.module_depth: int | None = None
        """Depth below the root of the modules that get spans. None: the model's blocks."""
        self.corruption_check_steps: int | None = None
        """Steps from one check of the training's state to the next. None: no checks."""
        self.trace_non_finite = False
        """True if the first value of a step that is not finite is traced to its module."""
        self.signal_stacks = False
        """True if the rank writes its stacks at signals."""
        self.resolved_axes: Mapping[str, str] = {}
        """Name or description of a process group -> the axis that the caller gave."""
        self.probes: dict[str, str] = {}
        self.keeps_messages = True
        """True if the messages of exceptions are recorded."""
        self.handled = 0
        """Identity of the exception that was being handled at the last begin of a step, or when the group came up; 0
        without one. It is not the cause of later ones.
        """
        self.exit_call: tuple[int, dict[str, Any]] | None = None
        """Time and details of the last call of `sys.exit`."""
        self.active = True
        self.is_native = False
        """True if native code records collectives."""
        self.begin_phase_natively: NativePhase | None = None
        """Opens a phase on a thread that has recorded a collective natively."""
        self.detailed = False
        """True in a window: collectives, waits, pipeline actions and modules are recorded too. Implies `active`."""
        self._between_steps: Listeners = {}
        self._between_detailed_steps: dict[WhenDue, _Waiting] = {}
        self._between_blocks: Listeners = {}
        self._at_blocks: dict[Prepare, Callable[[bool], bool | None]] = {}
        self._now_and_then: Listeners = {}
        self._before_failing: Listeners = {}
        self._num_modules = 0
        """Number of imported modules at the last call of these listeners."""
        self._owner_pid = os.getpid()
        self.main_thread = self._beginning_thread = threading.get_ident()
        """The training thread: the one that began the run, unless another trains."""
        self._started_wall_ns = time.time_ns()
        self._revision = training_revision()
        """Read once: the training may change or remove its working directory."""
        self._last_clock_ns = 0
        self.directory = self._make_provisional(out or root)
        segments = max(disk_budget_bytes // SEGMENT_BYTES, 2)
        self.shared = Shared(self.directory, segments_per_thread=segments)
        self.names = Names(self.directory / NAMES_FILE)
        self._details = Details(self.directory / DETAILS_FILE)
        self._groups = LineFile(self.directory / GROUPS_FILE)
        self._num_groups = 0
        self.longest_sample = 0
        """Tokens of the longest sample of a rollout so far."""
        self.main = ThreadWriter(self.shared, thread="main")
        mute = ThreadWriter(self.shared, thread="")
        mute.abandon()
        others = [ThreadWriter(self.shared, thread=f"thread-{number}") for number in range(1, MAX_WRITERS)]
        self.writers = (self.main, *others)
        self.threads = _Threads(deque(reversed(others)), mute)
        self.threads.writer = self.main
        self.steps = Steps(self.main, self.shared)
        reserve(self.directory / RANK_FILE)
        self.write_metadata()
        self.settle()

    def writer(self) -> ThreadWriter:
        """Return the calling thread's writer."""
        return self.threads.writer

    def event(
        self, name: str, details: dict[str, Any], *, from_training: bool = False, at_ns: int | None = None
    ) -> None:
        """Record an event. `from_training`: the training called `traincope.event()`. `at_ns`: now, if it is None."""
        now = monotonic_ns() if at_ns is None else at_ns
        number = _number_details(self._details, details) if details else 0
        flags = Flag.GIVEN if from_training else 0
        self.writer().write(Kind.EVENT, now, now, name=self.names.intern(name), group=number or 0, flags=flags)

    def add_group(self, *, key: str, axis: str, rule: str, ranks: tuple[int, ...], **unknown: int | bool | None) -> int:
        """Record a process group and return its number in this rank's records.

        `unknown`: further fields of `Group`, of a group whose members torch does not know.
        """
        self.settle()
        number = self._num_groups
        self._num_groups += 1
        self._groups.append(
            number, json.dumps({"key": key, "axis": axis, "rule": rule, "ranks": list(ranks), **unknown})
        )
        return number

    def before_work(self) -> None:
        """Note that the calling thread fetches a batch or runs a root module: that may begin a step.

        Only work of the training thread counts. A prefetching thread works for a later step.
        """
        thread, steps = threading.get_ident(), self.steps
        if not steps.has_trained:
            self._first_work_thread = thread
        if thread == self.main_thread and steps.before_work():
            self.tick()

    def before_backward(self, outputs: object) -> None:
        """Note that the calling thread begins a backward from `outputs`: that may begin a step too.

        The first thread that runs a backward is the training thread. Ray's workers train in a thread of their own.
        Until that thread has updated weights, it may only have warmed up: then the thread that began the run has
        precedence, and any thread after its end.
        """
        thread, steps = threading.get_ident(), self.steps
        if thread != self.main_thread and self._trains_elsewhere():
            self._move_training_here()
        if thread == self.main_thread and steps.before_backward(outputs):
            self.tick()
        steps.backward_began()

    def _trains_elsewhere(self) -> bool:
        """Return whether the training is in the calling thread instead of the training thread so far."""
        if not self.steps.has_trained:
            return True
        if self.steps.has_updated:
            return False
        here, threads = threading.get_ident(), threading.enumerate()
        return here == self._beginning_thread or all(thread.ident != self.main_thread for thread in threads)

    def _move_training_here(self) -> None:
        """Make the calling thread the training thread: it continues the records of the one before."""
        writer = self.threads.writer
        if writer in self.writers and self._moving.acquire(blocking=False):
            try:
                self.threads.keep_writer()
                writer.exchange_names(self.main)
                self.main, self.main_thread = writer, threading.get_ident()
                self.steps.continue_on(writer, work_shown=self._first_work_thread == self.main_thread)
            finally:
                self._moving.release()

    def update_ended(self) -> None:
        """Note that an optimizer's step is over: that may begin the next step."""
        if threading.get_ident() == self.main_thread and self.steps.update_ended():
            self.tick()

    def before_evaluation(self) -> None:
        """Note that the calling thread evaluates: before the first step, nothing else shows what was imported."""
        if threading.get_ident() == self.main_thread and len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            _call(self._now_and_then)

    def between_steps(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the training thread at every boundary of steps. Repeated registrations count once.

        A light step has time for few listeners: register for as long as there is something to do.
        """
        if listener not in self._between_steps:
            self._between_steps[listener] = guard(listener)

    def between_detailed_steps(self, listener: WhenDue) -> None:
        """Call `listener` like those of `between_steps`, but only in windows and where a block of steps begins, and
        from the step on that it has returned.

        Most calls have nothing to do, so only one in many is timed: what costs more has a guard of its own.
        """
        if listener not in self._between_detailed_steps:
            self._between_detailed_steps[listener] = _Waiting(guard(listener, every=SAMPLING_INTERVAL))

    def between_blocks(self, listener: Callable[[], None]) -> None:
        """Call `listener` like those of `between_steps`, but only where a block of steps begins."""
        self._between_blocks.setdefault(listener, guard(listener))

    def at_blocks(self, prepare: Prepare) -> None:
        """Call `prepare` on the training thread where a block of steps begins. Repeated registrations count once."""
        self._at_blocks.setdefault(prepare, guard(prepare))

    def begin_block(self, *, detailed: bool) -> None:
        """Begin a block of steps: a window, if its detail is wanted and every hook is prepared for it."""
        self.shared.set_window(self.shared.step)
        prepared = [prepare(detailed) for prepare in self._at_blocks.values()]
        self.set_detailed(detailed and all(prepared))

    def set_detailed(self, detailed: bool) -> None:
        """Begin or end detail, for hooks in Python and in native code."""
        self.detailed = detailed
        self.shared.cells[DETAILED] = detailed
        if not detailed:
            self.steps.detail = 0

    def share_places(self, library: Library) -> tuple[NativePlace, ...]:
        """Let native code read the numbers of `Shared`. Returns a place in the library for each of `writers`."""
        library.cells[: len(Cell)] = self.shared.cells
        self.shared.cells = library.cells
        return tuple(NativePlace(library, number) for number in range(len(self.writers)))

    def spare_writer(self) -> ThreadWriter:
        """Take a writer that no thread of Python gets: native code writes with it."""
        return self.threads.take()

    def now_and_then(self, listener: Callable[[], None]) -> None:
        """Call `listener` like those of `between_steps`, but only once a second and after imports."""
        self._now_and_then.setdefault(listener, guard(listener))

    def before_failing(self, listener: Callable[[], None]) -> None:
        """Call `listener` when an exception ends the run, before the hooks are removed."""
        self._before_failing.setdefault(listener, guard(listener))

    def fail(self) -> None:
        """Call the listeners of `before_failing`. The exception, and all that its frames hold, are still alive."""
        _call(self._before_failing)

    def remove_listener(self, listener: Callable[[], Any]) -> None:
        """Remove a listener from wherever it is registered."""
        for listeners in (self._between_steps, self._between_blocks, self._now_and_then):
            listeners.pop(listener, None)
        self._between_detailed_steps.pop(listener, None)

    def _tick(self) -> None:
        """Do periodic work between two steps, off the hot path."""
        now, num_modules = monotonic_ns(), len(sys.modules)
        self._note_handled()
        if self.place is None:
            self.settle(True)
        is_second_over = now - self._last_clock_ns > CLOCK_INTERVAL_NS
        if is_second_over or num_modules != self._num_modules:
            self._num_modules = num_modules
            _call(self._now_and_then)
        if is_second_over:
            self._write_clock()
            for file in self._side_files:
                file.retry()
        if self._between_steps:
            _call(self._between_steps)
        step = self.shared.step
        block_begins = step % BLOCK_STEPS == 0
        if block_begins:
            _call(self._between_blocks)
        if block_begins or self.detailed:
            for waiting in tuple(self._between_detailed_steps.values()):
                if step >= waiting.due:
                    waiting.due = waiting.call() or 0

    tick = guard(_tick, every=SAMPLING_INTERVAL)

    def _note_handled(self) -> None:
        error = sys.exception()
        self.handled = 0 if error is None else id(error)

    @property
    def run(self) -> Path | None:
        """The run directory, once it is known."""
        return self._out if self.place is None else self.place.run

    @property
    def named_run(self) -> Path | None:
        """The run directory as the user knows it, once it is known."""
        if self.place is not None:
            return self.place.named or self.place.run
        return self._out if self._out is None or self._named is None else self._named

    @property
    def world_size(self) -> int:
        return self.identity.world_size if self.place is None else self.place.world_size

    @guard
    def settle(self, without_group: bool = False, last_chance: bool = False) -> None:
        """Move from the provisional directory to the rank's own, once the rank's place is known."""
        if self.place is not None or self._displaced or not self.active or not self._settling.acquire(blocking=False):
            return  # known; or impossible; or another thread, or a frame below a signal handler, is settling
        try:
            place = self._rendezvous.poll(without_group=without_group)
            if place is None and last_chance:
                place = self._rendezvous.place_from_environment()
            if place is not None and self.place is None:
                self._move(place)
        finally:
            self._settling.release()

    def stay_provisional(self) -> None:
        """Never settle: a process that ends before it trains takes no place from one that does."""
        self._displaced = True

    def _move(self, place: Place) -> None:
        self.shared.next_directory = place.directory
        try:
            os.replace(self.directory, place.directory)
        except OSError:
            self._displaced = True
            _remove_empty(place.directory, place.directory.parent, place.run)
            raise
        finally:  # an exception of the training may arrive here; the next call then completes the move
            if not self._displaced and not self.directory.exists():
                self.directory = self.shared.directory = place.directory
        for file in self._side_files:
            file.path = place.directory / file.path.name
        self.place = place
        self._note_handled()
        self.write_metadata()
        if self._on_settled is not None:
            self._on_settled(place)

    def write_metadata(self, **ending: Any) -> None:
        """Write `rank.json` atomically; also `run.json`, from rank 0 or if none exists yet."""
        host, node, process = this_host(), this_node(os.environ), Process.this()
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
                "node": None if node is None else asdict(node),
                "pid": os.getpid(),
                "process": None if process is None else process.as_json(),
                "device": devices(),
                "cpu_limits": self.cpu_limits,
                "links": self.links,
                "started_wall_ns": self._started_wall_ns,
                "level": self.level,
                "budget": self.budget,
                "launch": None if self.place is None else self.place.launch,
                "probes": self.probes,
                "issued_collectives": self.issued_collectives,
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
            "id": place.name if place is not None else self._rendezvous.given_name() or "not known yet",
            "launch_id": identity.run_id,
            "world_size": self.world_size,
            "mesh": self.mesh,
            "started_wall_ns": self._started_wall_ns,
            "versions": versions(),
            "environment": allowed_variables(os.environ),
            "git_revision": self._revision,
            "command": os.path.basename(sys.argv[0]) if sys.argv else "",
            "settings": self.settings,
        }

    def close(self, *, ending: str, with_process: bool = False) -> None:
        """Close every segment, and record the ending and whether the process ended too.

        An exception leaves its step open.
        """
        if os.getpid() != self._owner_pid:
            return
        self._on_settled = None
        self.settle(True, True)
        if ending == CLEAN:
            self.steps.finish()
        self._write_clock()
        self.active = False
        self.set_detailed(False)
        for writer in self.writers:
            writer.close()
            writer.latest = None
        for file in self._side_files:
            file.close()
        self.write_metadata(
            ending=ending, with_process=with_process, ended_wall_ns=time.time_ns(), recorder=self._counts()
        )

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

    def withdraw(self) -> None:
        """Take no place among the ranks: the caller deletes the records."""
        self._displaced = True

    def abandon(self) -> None:
        """Stop writing in a forked child: the parent writes to the same files."""
        self.active = False
        self.set_detailed(False)
        for writer in self.writers:
            writer.abandon()
        for file in self._side_files:
            file.abandon()

    @property
    def _side_files(self) -> tuple[LineFile, ...]:
        return self.names.file, self._details.file, self._groups

    def _make_provisional(self, parent: Path) -> Path:
        directory = parent / f"{PROVISIONAL}{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
        make_directory(directory)
        return directory

    def _write_clock(self) -> None:
        """Read both clocks right after each other: the flight recorder's wall times are converted by the pair."""
        self._last_clock_ns = now = monotonic_ns()
        self.main.write(Kind.CLOCK, now, now, value=time.time_ns())


class _Waiting:
    """A listener, and the step from which on it is called."""

    __slots__ = ("call", "due")

    def __init__(self, call: WhenDue) -> None:
        self.call, self.due = call, 0


class _Threads(threading.local):
    """`.writer` is the calling thread's writer. A thread takes one at its first access and returns it at its end.

    The garbage collector may run at any line here, and write. All writers therefore exist from the start.
    """

    __slots__ = ("_idle", "_mute")
    """The same in all threads, as slots are."""
    writer: ThreadWriter
    parts = 0
    """Depth of the calling thread in parts of a step that are not training."""

    def __init__(self, idle: deque[ThreadWriter], mute: ThreadWriter) -> None:
        """`idle`: the writers that no thread has. `mute` drops every record and counts it."""
        self._idle = idle
        self._mute = mute

    def __getattr__(self, name: str) -> ThreadWriter:
        if name != "writer":
            raise AttributeError(name)
        try:
            taken = self._idle.pop()  # the latest one, most likely of a thread that has ended
        except IndexError:
            taken = self._mute
        self.writer = taken
        self.lease = _Lease(taken, deque() if taken is self._mute else self._idle)
        return taken

    def take(self) -> ThreadWriter:
        """Take the writer that a thread would get last. It is never given back."""
        try:
            return self._idle.popleft()
        except IndexError:
            return self._mute

    def keep_writer(self) -> None:
        """Give the calling thread's writer to no other thread after its end."""
        lease = getattr(self, "lease", None)  # the thread that began the run has none
        if lease is not None:
            lease.keep()


class _Lease:
    """A lease that ends with its thread. The next new thread continues in the same segment."""

    __slots__ = ("_idle", "_writer")

    def __init__(self, writer: ThreadWriter, idle: deque[ThreadWriter]) -> None:
        self._writer = writer
        self._idle = idle

    def keep(self) -> None:
        """Give the writer to no other thread."""
        self._idle = deque()

    def __del__(self) -> None:
        self._writer.thread_ended()
        self._idle.append(self._writer)


def _call(listeners: Listeners) -> None:
    """Call listeners, which may register and remove others."""
    for listener in tuple(listeners.values()):
        listener()


def _remove_empty(*directories: Path) -> None:
    """Remove directories while they are empty, innermost first."""
    with suppressed(OSError):
        for directory in directories:
            directory.rmdir()


@guard
def _number_details(details: Details, values: dict[str, Any]) -> int:
    """Write an event's details and return their number. Details whose `repr` raises do not lose the event."""
    return details.add(values)
