"""Shows every window to the exporters that are installed: the state, who serves it, and how it is found."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from traincope.analysis import Analysis
from traincope.errors import TraincopeError
from traincope.live import discovery
from traincope.live.hardware import Watch
from traincope.live.samples import Moment, samples
from traincope.live.state import State, advance, begin
from traincope.live.window import Window
from traincope.metrics import Sample
from traincope.record.guard import guard
from traincope.store import Attempt
from traincope.store.launcher import notes_of, read_notes
from traincope.store.layout import attempt_directory, rank_directory
from traincope.store.lock import lock_path
from traincope.store.reading import earlier_attempts
from traincope.store.rows import Row, read_rows
from traincope_exporters.live import Following, Origin, Running, Source, Start, found

logger = logging.getLogger(__name__)

SERVED = "prometheus"
"""The exporter whose URL a Prometheus is told."""


class Exporting:
    """An observer; the exporters begin with the first window, so that they have something to say."""

    def __init__(self, *, job: str, host: str, environment: Mapping[str, str] = os.environ) -> None:
        """`job` names this job among all of the node."""
        self._job = job
        self._host = host
        self._environment = environment
        self._gpus = Watch()
        self._state: State | None = None
        self._running: dict[str, Running] = {}
        self._following: list[Callable[[Analysis], None]] = []
        self._notes: list[discovery.Note] = []

    def observed(self, window: Window) -> None:
        self._gpus.ask(window.ranks)
        before = self._state
        if before is None:
            self._state = begin(window, earlier=earlier_of(window), restored=restored_rows(window, known=frozenset()))
            self._start(window.run, self._origin(window))
        else:
            known = frozenset(rank.rank for rank in before.ranks)
            self._state = advance(before, window, restored=restored_rows(window, known=known))
        if window.analysis is not None:
            found = replace(window.analysis, faults=window.faults)
            for follow in self._following:
                follow(found)

    def close(self) -> None:
        for note in self._notes:
            note.remove()
        for running in self._running.values():
            guard(running.stop)()
        self._gpus.stop()
        self._notes, self._running, self._following = [], {}, []

    def samples(self) -> list[Sample]:
        """As they stand; any thread may ask."""
        state = self._state
        if state is None:
            return []
        return samples(state, host=self._host, moment=Moment.now(), hardware=self._gpus.latest())

    def _origin(self, window: Window) -> Origin:
        began_ns = min((rank.info.started_wall_ns for rank in window.ranks), default=window.info.started_wall_ns)
        return Origin(run=window.info.id, host=self._host, began_ns=began_ns)

    def _start(self, run: Path, origin: Origin) -> None:
        for name, load in found():
            running = _started(name, load, self.samples, origin=origin, environment=self._environment)
            if running is not None:
                self._running[name] = running
                logger.info("%s: %s", name, running.where)
            if isinstance(running, Following):
                self._following.append(guard(running.follow))
        if not self._running:
            return
        urls = {name: running.where for name, running in self._running.items()}
        self._notes = [discovery.announcement(run, host=self._host, served=urls)]
        if SERVED in urls:
            told = self._environment.get(discovery.DIRECTORY_VARIABLE)
            directory = Path(told) if told else lock_path(self._job).parent
            discovery.sweep(directory, host=self._host)
            self._notes.append(discovery.target(directory, job=self._job, host=self._host, where=urls[SERVED]))
        for note in self._notes:
            _write(note)


def _started(
    name: str, load: Callable[[], Start], source: Source, *, origin: Origin, environment: Mapping[str, str]
) -> Running | None:
    """None where it is not asked for, or cannot be: training goes on, and so do the others."""

    def start() -> Running | None:
        begin_exporting = load()
        try:
            return begin_exporting(source, origin=origin, environment=environment)
        except TraincopeError as error:
            logger.warning("%s: %s", name, error)
            return None

    return guard(start)()


def _write(note: discovery.Note) -> None:
    try:
        note.write()
    except OSError as error:
        logger.warning("%s cannot be written: %s", note.path, error.strerror)


def earlier_of(window: Window) -> tuple[Attempt, ...]:
    directories = [attempt_directory(window.run, number) for number in range(window.attempt)]
    there = [directory for directory in directories if directory.is_dir()]
    return tuple(earlier_attempts(there, notes=read_notes(notes_of(window.run))))


def restored_rows(window: Window, *, known: frozenset[int]) -> tuple[Row, ...]:
    """Rows that an agent before this one wrote of ranks that are new to this one."""
    new = {(row.rank, row.step) for row in window.rows}
    return tuple(
        row
        for status in window.ranks
        if status.rank not in known
        for row in read_rows(rank_directory(window.run, attempt=window.attempt, rank=status.rank), rank=status.rank)
        if (row.rank, row.step) not in new
    )
