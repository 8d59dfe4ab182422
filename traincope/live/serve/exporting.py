"""Observer that passes every window to the installed exporters."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from traincope.analysis import Analysis
from traincope.errors import TraincopeError
from traincope.live.metrics.folding import PER_RANK_VARIABLE, folded
from traincope.live.metrics.hardware import Gpus, Watcher
from traincope.live.metrics.links import HostLinks
from traincope.live.metrics.samples import Moment, samples
from traincope.live.metrics.state import State, advance, begin
from traincope.live.serve import discovery
from traincope.live.serve.exporters import Following, Origin, Running, Source, Start, live_exporters
from traincope.live.window import Window
from traincope.metrics.installed import INSTALL, NO_EXPORTERS, SCRAPED
from traincope.metrics.labels import placement
from traincope.metrics.sample import Sample
from traincope.record.instrumentation.guard import guard
from traincope.record.session.options import is_on
from traincope.store import Attempt
from traincope.store.job.launcher import notes_path, read_notes
from traincope.store.layout import attempt_directory, rank_directory
from traincope.store.lock import make_node_directory, node_directory
from traincope.store.reading import earlier_attempts
from traincope.store.side_tables.rows import Row, read_rows

logger = logging.getLogger(__name__)


class Exporting:
    """Observer of the exporters. They start with the first window, so that samples exist."""

    def __init__(self, *, job: str, host: str, environment: Mapping[str, str] = os.environ) -> None:
        """`job`: name of this job that is unique on the node."""
        self._job = job
        self._host = host
        self._environment = environment
        self._placement = placement(environment)
        self._per_rank = is_on(environment.get(PER_RANK_VARIABLE, ""))
        self._hardware = (Watcher(Gpus(), "traincope-gpus"), Watcher(HostLinks(), "traincope-links"))
        self._state: State | None = None
        self._running: dict[str, Running] = {}
        self._following: list[Callable[[Analysis], None]] = []
        self._notes: list[discovery.Note] = []

    def observe(self, window: Window) -> None:
        for watcher in self._hardware:
            watcher.request(window.ranks)
        before = self._state
        if before is None:
            notes = read_notes(notes_path(window.run))
            self._state = begin(
                window,
                earlier=earlier_attempts_of(window),
                notes=notes,
                restored=restored_rows(window, known=frozenset()),
            )
            self._start(window.run, self._origin(window))
        else:
            known = frozenset(rank.rank for rank in before.ranks)
            self._state = advance(before, window, restored=restored_rows(window, known=known))
        if window.analysis is not None:
            shown = replace(window.analysis, faults=window.faults)
            for follow in self._following:
                follow(shown)

    def close(self) -> None:
        for note in self._notes:
            note.remove()
        for running in self._running.values():
            guard(running.stop)()
        for watcher in self._hardware:
            watcher.stop()
        self._notes, self._running, self._following = [], {}, []

    def samples(self) -> list[Sample]:
        """Current samples. Any thread may call it."""
        state = self._state
        if state is None:
            return []
        hardware = {key: value for watcher in self._hardware for key, value in watcher.latest().items()}
        listed = samples(state, host=self._host, moment=Moment.now(), hardware=hardware, placed=self._placement)
        return listed if self._per_rank else folded(listed)

    def _origin(self, window: Window) -> Origin:
        began_ns = min((rank.info.started_wall_ns for rank in window.ranks), default=window.info.started_wall_ns)
        return Origin(run=window.info.label, host=self._host, began_ns=began_ns)

    def _start(self, run: Path, origin: Origin) -> None:
        exporters = tuple(live_exporters())
        if SCRAPED not in dict(exporters):
            logger.warning("%s: %s", NO_EXPORTERS, INSTALL)
        for name, load in exporters:
            running = _start_exporter(name, load, self.samples, origin=origin, environment=self._environment)
            if running is not None:
                self._running[name] = running
                logger.info("%s: %s", name, running.where)
            if isinstance(running, Following):
                self._following.append(guard(running.follow))
        if not self._running:
            return
        urls = {name: running.where for name, running in self._running.items()}
        self._write(discovery.announcement(run, host=self._host, served=urls))
        if SCRAPED in urls:
            self._write_target(urls[SCRAPED])

    def _write_target(self, where: str) -> None:
        configured = self._environment.get(discovery.DIRECTORY_VARIABLE)
        directory = Path(configured) if configured else node_directory()
        try:
            if not configured:
                make_node_directory()
            target = discovery.target(directory, job=self._job, host=self._host, where=where)
        except OSError as error:
            logger.warning("no target file for Prometheus in %s: %s", directory, error.strerror)
            return
        discovery.remove_stale(directory, host=self._host)
        self._write(target)

    def _write(self, note: discovery.Note) -> None:
        try:
            note.write()
        except OSError as error:
            logger.warning("%s cannot be written: %s", note.path, error.strerror)
        else:
            self._notes.append(note)


def _start_exporter(
    name: str, load: Callable[[], Start], source: Source, *, origin: Origin, environment: Mapping[str, str]
) -> Running | None:
    """Start an exporter; None if it is not enabled or fails. Training and the other exporters continue."""

    def start() -> Running | None:
        begin_exporting = load()
        try:
            return begin_exporting(source, origin=origin, environment=environment)
        except TraincopeError as error:
            logger.warning("%s: %s", name, error)
            return None

    return guard(start)()


def earlier_attempts_of(window: Window) -> tuple[Attempt, ...]:
    directories = [attempt_directory(window.run, number) for number in range(window.attempt + 1)]
    return tuple(earlier_attempts(directories, notes=read_notes(notes_path(window.run))))


def restored_rows(window: Window, *, known: frozenset[int]) -> tuple[Row, ...]:
    """Rows that an earlier agent wrote, for ranks that this agent sees for the first time."""
    new = {(row.rank, row.step) for row in window.rows}
    return tuple(
        row
        for status in window.ranks
        if status.rank not in known
        for row in read_rows(rank_directory(window.run, attempt=window.attempt, rank=status.rank), rank=status.rank)
        if (row.rank, row.step) not in new
    )
