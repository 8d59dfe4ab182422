"""The open runs: the current state of each, and the child process that reads them."""

import json
import shutil
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import cast

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.report.document.costs import with_price
from traincope.report.document.job_summary import SummaryDocument
from traincope.report.schema import Document
from traincope.summaries.reading import is_for_rows
from traincope.tiles.storage import DOCUMENT_FILE, Row, Tiles, open_tiles
from traincope.units import CURRENCY
from traincope.viewer.library.analysis_cache import load_analysis
from traincope.viewer.library.analysis_process import Pending, Reading
from traincope.viewer.library.preparing import Place, growing, prepare, summarise
from traincope.viewer.library.shipped_tiles import link_shipped


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The state of a run, as far as it has been read; a growing run gets a new object for each state."""

    path: Path
    tiles: Tiles | None = None
    document: Document | None = None
    analysis: Analysis | None = None
    summary: SummaryDocument | None = None
    """What rows and last records show of a run of very many ranks. Its events are read only when asked for."""
    events_problem: str | None = None
    """A sentence that says why the events of a run of very many ranks could not be read, by the last request."""
    failed_request: int = 0
    """Number of the last request for the events that failed; 0 without one."""
    problem: str | None = None
    """A sentence that says why the run cannot be read."""
    stage: str = ""
    """What the first reading does now; empty once there is something to show."""
    generation: int = 0
    """Number of the state."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def growing(self) -> bool:
        """True while a rank may still be recording, because it has no recorded end."""
        return self.document is not None and growing(self.document)

    @cached_property
    def _rows(self) -> tuple[tuple[Row, ...], tuple[int, ...]]:
        rows = tuple(row for row in self.tiles.header.rows if row.num_spans) if self.tiles else ()
        return rows, tuple(row.first_span for row in rows)

    def row_of(self, span: int) -> Row:
        """The row of a span."""
        rows, firsts = self._rows
        return rows[bisect_right(firsts, span) - 1]


NO_RUN = Opened(path=Path(), problem="no run is open; start `traincope view` with one")


SLOW_LOOK_SECONDS, REST = 0.2, 20
"""A look for changes of a run that takes so much CPU time is repeated only after `REST` times as long."""
PREPARING = partial(Reading, work=prepare)
SUMMARISING = partial(Reading, work=summarise)


class Library:
    """Runs by position. `refresh` starts to read changed runs; a later `refresh` takes the result."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        cache: Path,
        begin: Callable[[Path, Path], Pending] = PREPARING,
        begin_summary: Callable[[Path, Path], Pending] = SUMMARISING,
        price_per_gpu_hour: float | None = None,
        currency: str = CURRENCY,
    ) -> None:
        """`begin` starts to read a run and write its tiles, `begin_summary` to read rows and last records of a run of
        very many ranks. The cache on disk holds no prices.
        """
        self._price, self._currency = price_per_gpu_hour, currency
        self._begin_reading, self._begin_summary = begin, begin_summary
        self._with_events: dict[int, int] = {}
        """Run of very many ranks whose events were asked for -> number of the request."""
        self._look_again: dict[int, float] = {}
        """Run -> time of `time.monotonic` until which it is not looked at for changes."""
        self._cache = cache
        self._opened = [Opened(path=path) for path in paths]
        self._read: dict[int, Path] = {}
        self._readings: dict[int, Pending] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._opened)

    def __getitem__(self, position: int) -> Opened:
        """The run at `position`; the first run for an invalid position; without any run, one that says so."""
        if not self._opened:
            return NO_RUN
        return self._opened[position if 0 <= position < len(self) else 0]

    @property
    def generation(self) -> int:
        return sum(opened.generation for opened in self._opened)

    @property
    def busy(self) -> bool:
        """True while a run is being read, and until another thread has taken over what was read."""
        return bool(self._readings) or self._lock.locked()

    def refresh(self) -> None:
        """Read new and changed runs, one after the other. Does nothing while another thread does so."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for position in tuple(self._readings):
                self._collect(position)
            for position, opened in enumerate(self._opened):
                if not self._readings and time.monotonic() >= self._look_again.get(position, 0.0):
                    self._begin(position, opened.path)
        finally:
            self._lock.release()

    def ask_for_events(self, position: int, *, request: int = 1) -> None:
        """Begin to read the events of a run of which only rows and last records were read. `request` is its number, 1
        for the first: a page asks again whenever it is drawn, and a request that failed is not repeated.
        """
        if position in self._with_events or request <= self[position].failed_request:
            return
        with self._lock:
            self._with_events[position] = request
            self._read.pop(position, None)
            self._look_again.pop(position, None)
            self._change(position, events_problem=None)
        self.refresh()

    def is_reading_events(self, position: int) -> bool:
        """Whether the events of a run of very many ranks were asked for, and are not read yet."""
        return position in self._with_events and self[position].analysis is None

    @property
    def stage(self) -> str:
        """What the first reading of a run does, with the run's name; empty if every run has something to show."""
        return next((f"{opened.name}: {opened.stage}" for opened in self._opened if opened.stage), "")

    def close(self) -> None:
        with self._lock:
            for reading in self._readings.values():
                reading.close()
            self._readings.clear()

    def _begin(self, position: int, path: Path) -> None:
        began = time.thread_time()
        try:
            tiles = Place(run=path, cache=self._cache).tiles
            link_shipped(path, tiles)
        except RunDirectoryError as error:
            self._change(position, problem=str(error))
            return
        if self._read.get(position) == tiles:
            spent = time.thread_time() - began
            if spent >= SLOW_LOOK_SECONDS:
                self._look_again[position] = time.monotonic() + REST * spent
            return
        analysis = load_analysis(tiles)
        if analysis is not None and self._show(position, tiles, analysis=analysis):
            self._read[position] = tiles
            return
        shown = self._opened[position].tiles
        if shown is None or shown.path != tiles:
            self._show(position, tiles, analysis=None)
        begin = self._begin_summary if self._stands_on_rows(position) else self._begin_reading
        self._readings[position] = begin(path, tiles)

    def _stands_on_rows(self, position: int) -> bool:
        try:
            return position not in self._with_events and is_for_rows(self._opened[position].path)
        except RunDirectoryError:
            return False  # who reads the run says why it cannot

    def _collect(self, position: int) -> None:
        """Take the result of a finished child process."""
        if not self._readings[position].done():
            self._note_stage(position)
            return
        reading = self._readings.pop(position)
        self._read[position] = reading.tiles
        try:
            result = reading.result()
        except TraincopeError as error:
            self._failed(position, str(error))
            return
        if isinstance(result, Analysis):
            self._show(position, reading.tiles, analysis=result)
            return
        self._change(position, summary=result, problem=None, stage="")
        if position in self._with_events:  # they were asked for in the meantime
            del self._read[position]

    def _failed(self, position: int, problem: str) -> None:
        """Note a failed reading. If rows were read and no events, the rows stay, and are followed again."""
        opened = self._opened[position]
        if position not in self._with_events or opened.summary is None or opened.analysis is not None:
            self._change(position, problem=problem)
            return
        self._change(position, events_problem=problem, failed_request=self._with_events.pop(position), stage="")

    def _note_stage(self, position: int) -> None:
        """A page that shows a result is not drawn again for this."""
        stage, opened = self._readings[position].stage, self._opened[position]
        if opened.document is None and stage != opened.stage:
            self._change(position, stage=stage)

    def _show(self, position: int, tiles: Path, *, analysis: Analysis | None) -> bool:
        """Show the tiles on disk; False where they are missing or damaged."""
        if not tiles.is_dir():
            return False
        try:
            document = self._with_prices(json.loads((tiles / DOCUMENT_FILE).read_text(encoding="utf-8")))
            self._change(
                position, tiles=open_tiles(tiles), document=document, analysis=analysis, problem=None, stage=""
            )
        except (RunDirectoryError, OSError, ValueError):
            shutil.rmtree(tiles, ignore_errors=True)  # A damaged cache is written again.
            return False
        return True

    def _with_prices(self, read: object) -> Document:
        document = cast(Document, read)
        if self._price is None:
            return document
        return with_price(document, price_per_gpu_hour=self._price, currency=self._currency)

    def _change(self, position: int, **changes: object) -> None:
        before = self._opened[position]
        if changes.get("problem") == before.problem and set(changes) == {"problem"}:
            return
        if changes.get("analysis", before) is None:
            changes["analysis"] = before.analysis
        self._opened[position] = replace(before, generation=before.generation + 1, **changes)  # type: ignore[arg-type]
