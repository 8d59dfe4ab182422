"""The runs that are open: what is known of each by now, and the child process that reads them."""

import json
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.report.priced import priced
from traincope.report.schema import Document
from traincope.store.tiles import DOCUMENT_FILE, Row, Tiles, open_tiles
from traincope.viewer.adopting import adopt
from traincope.viewer.keeping import kept
from traincope.viewer.preparing import Place, growing
from traincope.viewer.reading import Pending, Reading


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A run, as far as it has been read; a later state of a growing run is another object."""

    path: Path
    tiles: Tiles | None = None
    document: Document | None = None
    analysis: Analysis | None = None
    problem: str | None = None
    """Why it cannot be read, a sentence."""
    generation: int = 0
    """Rises with each state."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def growing(self) -> bool:
        """Whether a rank may go on recording: nothing says that it has ended."""
        return self.document is not None and growing(self.document)

    @cached_property
    def _rows(self) -> tuple[tuple[Row, ...], tuple[int, ...]]:
        rows = tuple(row for row in self.tiles.header.rows if row.num_spans) if self.tiles else ()
        return rows, tuple(row.first_span for row in rows)

    def row_of(self, span: int) -> Row:
        """The row that a span lies in."""
        rows, firsts = self._rows
        return rows[bisect_right(firsts, span) - 1]


class Library:
    """Runs by position. `refresh` looks whether one has changed; the answer to that comes later."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        cache: Path,
        begin: Callable[[Path, Path], Pending] = Reading,
        price_per_gpu_hour: float | None = None,
    ) -> None:
        """`begin` starts to read a run, of which it also makes the tiles; what is kept on disk has no price."""
        self._price = price_per_gpu_hour
        self._begin_reading = begin
        self._cache = cache
        self._opened = [Opened(path=path) for path in paths]
        self._read: dict[int, Path] = {}
        self._readings: dict[int, Pending] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._opened)

    def __getitem__(self, position: int) -> Opened:
        """The first for a position that is none."""
        return self._opened[position if 0 <= position < len(self) else 0]

    @property
    def generation(self) -> int:
        return sum(one.generation for one in self._opened)

    @property
    def busy(self) -> bool:
        return bool(self._readings)

    def refresh(self) -> None:
        """Read the runs that are new or have changed, one after the other."""
        with self._lock:
            for position in tuple(self._readings):
                self._collect(position)
            for position, opened in enumerate(self._opened):
                if not self._readings:
                    self._begin(position, opened.path)

    def close(self) -> None:
        with self._lock:
            for reading in self._readings.values():
                reading.close()
            self._readings.clear()

    def _begin(self, position: int, path: Path) -> None:
        try:
            tiles = Place(run=path, cache=self._cache).tiles
            adopt(path, tiles)
        except RunDirectoryError as error:
            self._change(position, problem=str(error))
            return
        if self._read.get(position) == tiles:
            return
        analysis = kept(tiles)
        if analysis is not None and self._show(position, tiles, analysis=analysis):
            self._read[position] = tiles
            return
        shown = self._opened[position].tiles
        if shown is None or shown.path != tiles:
            self._show(position, tiles, analysis=None)
        self._readings[position] = self._begin_reading(path, tiles)

    def _collect(self, position: int) -> None:
        """Take what a child has finished."""
        if not self._readings[position].done():
            return
        reading = self._readings.pop(position)
        self._read[position] = reading.tiles
        try:
            self._show(position, reading.tiles, analysis=reading.result())
        except TraincopeError as error:
            self._change(position, problem=str(error))

    def _show(self, position: int, tiles: Path, *, analysis: Analysis | None) -> bool:
        """What is on disk already, at once; False where it is not, or is damaged."""
        if not tiles.is_dir():
            return False
        try:
            document = self._priced(json.loads((tiles / DOCUMENT_FILE).read_text(encoding="utf-8")))
            self._change(position, tiles=open_tiles(tiles), document=document, analysis=analysis, problem=None)
        except (RunDirectoryError, OSError, ValueError):
            shutil.rmtree(tiles, ignore_errors=True)  # A cache that is damaged is made anew.
            return False
        return True

    def _priced(self, read: object) -> Document:
        document = cast(Document, read)
        return document if self._price is None else priced(document, price_per_gpu_hour=self._price)

    def _change(self, position: int, **changes: object) -> None:
        before = self._opened[position]
        if changes.get("problem") == before.problem and set(changes) == {"problem"}:
            return
        if changes.get("analysis", before) is None:
            changes["analysis"] = before.analysis
        self._opened[position] = replace(before, generation=before.generation + 1, **changes)  # type: ignore[arg-type]
