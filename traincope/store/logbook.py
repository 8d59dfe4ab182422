"""The logbook of a job: a list of its runs and interruptions, kept by people, in `logbook.csv` of a run directory.

One row is one entry. `kind` decides which other columns count (docs/understand/goodput.md has the table). An empty cell
is unknown. Times are ISO 8601 with a zone; a date alone is the day in UTC.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from traincope.errors import DataError
from traincope.store.job.manifests import MAX_RANKS
from traincope.store.separators import column_name, separator

COLUMNS = (
    *("kind", "run", "start", "end", "hours", "ranks", "step_seconds", "complete"),
    *("cause", "count", "step", "lost_steps", "lost_hours", "note", "source"),
)
REQUIRED = ("kind", "cause")
PERIOD, RUN, INTERRUPTION, PROGRESS, NOTE = KINDS = ("period", "run", "interruption", "progress", "note")
UNKNOWN_CAUSE = "unknown"
ENCODING = "utf-8-sig"
"""UTF-8; spreadsheets put a mark before the first head."""
CAUSE = re.compile(r"[a-z][a-z0-9_]{0,47}")
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
LONGEST_HOURS = 1e6
LARGEST_COUNT = 1 << 40
MOST_INTERRUPTIONS = 1_000_000
"""Bound of all counts together. A larger number is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """A stretch in which the job trained. Instants are ns of wall time since the epoch."""

    label: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedInterruption:
    """Interruptions of one cause: one, or `count` that the list has as a total."""

    label: str
    """The run that it ended; empty: unknown."""
    at_ns: int | None
    to_the_day: bool
    """True if only the day of `at_ns` is known."""
    cause: str
    count: int
    down_ns: int | None
    """Time without training after it, as the list has it."""
    lost_steps: int | None
    lost_ns: int | None
    """Time of the lost steps: as the list has it, otherwise the steps times the step time."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A time at which the number of steps of the job's state is known."""

    at_ns: int
    to_the_day: bool
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedNote:
    """An entry that enters no number."""

    at_ns: int | None
    to_the_day: bool
    cause: str
    label: str
    """The run that it names; may be empty."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Logbook:
    """Entries of a logbook, in order of time where they have one."""

    start_ns: int | None
    """Begin of the observed period; None: only its length is known."""
    elapsed_ns: int
    num_ranks: int
    step_ns: int | None
    complete: bool
    """True if the list has all interruptions of the period."""
    runs: tuple[LoggedRun, ...]
    interruptions: tuple[LoggedInterruption, ...]
    progress: tuple[Progress, ...]
    notes: tuple[LoggedNote, ...] = ()


def is_logbook(path: Path) -> bool:
    """True if the file's first line has the columns that every logbook has."""
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            heads = next(csv.reader(file, delimiter=separator(file)), [])
            return set(REQUIRED) <= set(map(column_name, heads))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def read_logbook(path: Path) -> Logbook:
    """Read and check a logbook. Raises DataError with the line that is wrong."""
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            reader = csv.DictReader(file, delimiter=separator(file))
            heads = tuple(map(column_name, reader.fieldnames or ()))
            reader.fieldnames = heads
            rows = [_Row(path, reader.line_num, cells) for cells in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}; give a CSV file in UTF-8") from error
    if unknown := [name for name in heads if name not in COLUMNS]:
        raise DataError(f"{path} has the unknown column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    if lacking := [name for name in REQUIRED if name not in heads]:
        raise DataError(f"{path} lacks the column {lacking[0]}; the columns are {', '.join(COLUMNS)}")
    return _logbook(path, rows)


def _logbook(path: Path, rows: Sequence["_Row"]) -> Logbook:
    by_kind: dict[str, list[_Row]] = {kind: [] for kind in KINDS}
    for row in rows:
        if row.text("kind") not in by_kind:
            raise row.error("kind", f"is not one of {', '.join(KINDS)}")
        by_kind[row.text("kind")].append(row)
    if len(by_kind[PERIOD]) != 1:
        raise DataError(f"{path} has {len(by_kind[PERIOD])} rows of kind {PERIOD}; give one, with the observed time")
    (period,) = by_kind[PERIOD]
    start, end = period.instant("start"), period.instant("end")
    step_seconds = period.number("step_seconds")
    step_ns = None if step_seconds is None else round(step_seconds * SECOND_NS)
    hours = period.number("hours")
    if start is not None and end is not None:
        elapsed_ns = end[0] - start[0]
    elif hours is not None:
        elapsed_ns = round(hours * HOUR_NS)
    else:
        raise period.error("hours", f"is empty; a {PERIOD} needs start and end, or hours")
    if elapsed_ns <= 0:
        raise period.error("end", "is not after the start")
    book = Logbook(
        start_ns=None if start is None else start[0],
        elapsed_ns=elapsed_ns,
        num_ranks=period.whole("ranks", most=MAX_RANKS) or period.must("ranks"),
        step_ns=step_ns,
        complete=period.yes("complete"),
        runs=tuple(sorted(map(_run, by_kind[RUN]), key=lambda run: run.start_ns)),
        interruptions=tuple(sorted((_interruption(row, step_ns=step_ns) for row in by_kind[INTERRUPTION]), key=_when)),
        progress=tuple(sorted(map(_progress, by_kind[PROGRESS]), key=lambda progress: progress.at_ns)),
        notes=tuple(sorted(map(_note, by_kind[NOTE]), key=_when)),
    )
    _check(path, book)
    return book


def _run(row: "_Row") -> LoggedRun:
    start, end = row.instant("start") or row.must("start"), row.instant("end") or row.must("end")
    if end[0] <= start[0]:
        raise row.error("end", "is not after the start")
    return LoggedRun(label=row.text("run"), start_ns=start[0], end_ns=end[0])


def _interruption(row: "_Row", *, step_ns: int | None) -> LoggedInterruption:
    cause = row.text("cause") or UNKNOWN_CAUSE
    if not CAUSE.fullmatch(cause):
        raise row.error("cause", "is not one word of small letters, digits and _")
    at, lost_steps, lost_hours = row.instant("start"), row.whole("lost_steps"), row.number("lost_hours", zero=True)
    lost_ns = None if lost_hours is None else round(lost_hours * HOUR_NS)
    if lost_ns is None and lost_steps is not None and step_ns is not None:
        lost_ns = lost_steps * step_ns
    down = row.number("hours", zero=True)
    counted = row.whole("count", most=MOST_INTERRUPTIONS)
    if counted == 0:
        raise row.error("count", "is 0")
    return LoggedInterruption(
        label=row.text("run"),
        at_ns=None if at is None else at[0],
        to_the_day=at is not None and at[1],
        cause=cause,
        count=1 if counted is None else counted,
        down_ns=None if down is None else round(down * HOUR_NS),
        lost_steps=lost_steps,
        lost_ns=lost_ns,
        note=row.text("note"),
    )


def _note(row: "_Row") -> LoggedNote:
    """A note may have any text in any column; what is not a time counts as unknown."""
    try:
        at = row.instant("start")
    except DataError:
        at = None
    return LoggedNote(
        at_ns=None if at is None else at[0],
        to_the_day=at is not None and at[1],
        cause=row.text("cause"),
        label=row.text("run"),
        note=row.text("note"),
    )


def _progress(row: "_Row") -> Progress:
    at_ns, to_the_day = row.instant("start") or row.must("start")
    step = row.whole("step")
    return Progress(at_ns=at_ns, to_the_day=to_the_day, step=row.must("step") if step is None else step)


def _when(entry: LoggedInterruption | LoggedNote) -> tuple[bool, int]:
    return entry.at_ns is None, entry.at_ns or 0


def _check(path: Path, book: Logbook) -> None:
    """Raise DataError if rows contradict each other."""
    if sum(each.count for each in book.interruptions) > MOST_INTERRUPTIONS:
        raise DataError(f"{path} counts more than {MOST_INTERRUPTIONS:,} interruptions; correct the column count")
    for before, after in pairwise(book.runs):
        if after.start_ns < before.end_ns:
            raise DataError(f"{path}: run {after.label!r} starts before run {before.label!r} ends; correct their times")
    labels = [run.label for run in book.runs if run.label]
    if repeated := {label for label in labels if labels.count(label) > 1}:
        raise DataError(f"{path}: two runs are called {sorted(repeated)[0]!r}; name each differently")
    if strange := {each.label for each in book.interruptions if book.runs and each.label} - set(labels):
        raise DataError(f"{path}: an interruption names the run {sorted(strange)[0]!r}, which has no row; add it")
    ended = [each.label for each in book.interruptions if book.runs and each.label]
    if twice := {label for label in ended if ended.count(label) > 1}:
        raise DataError(f"{path}: two interruptions end the run {sorted(twice)[0]!r}; make one of them a {NOTE}")
    for earlier, later in pairwise(book.progress):
        if later.at_ns == earlier.at_ns or later.step < earlier.step:
            raise DataError(f"{path}: step {later.step} does not follow step {earlier.step}; correct the progress rows")
    if book.start_ns is None:
        if book.runs or book.progress:
            raise DataError(f"{path}: its {PERIOD} has no start and end, but its runs or steps have times; give both")
        return
    first_ns, last_ns = book.start_ns, book.start_ns + book.elapsed_ns
    for run in book.runs:
        if run.start_ns < first_ns or run.end_ns > last_ns:
            raise DataError(f"{path}: run {run.label!r} is not within the {PERIOD}; correct one of them")
    for each in book.interruptions:
        if each.at_ns is not None and not first_ns - DAY_NS * each.to_the_day <= each.at_ns <= last_ns:
            raise DataError(
                f"{path}: an interruption ({each.cause}, {_day(each.at_ns)}) is not within the {PERIOD}; correct "
                f"one of them, or make it a row of kind {NOTE}"
            )


def _day(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / SECOND_NS, tz=UTC).date().isoformat()


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: Mapping[str | None, str | list[str] | None]

    def text(self, column: str) -> str:
        value = self.cells.get(column)
        return value.strip() if isinstance(value, str) else ""

    def error(self, column: str, what: str) -> DataError:
        return DataError(f"{self.path}, line {self.line}: {column} {self.text(column)!r} {what}")

    def must(self, column: str) -> NoReturn:
        raise self.error(column, f"is missing or 0; a row of kind {self.text('kind')} needs it")

    def number(self, column: str, *, zero: bool = False) -> float | None:
        if not self.text(column):
            return None
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not (value >= 0 if zero else value > 0) or value > LONGEST_HOURS:
            raise self.error(column, f"is not a number from 0 to {LONGEST_HOURS:g}")
        return value

    def whole(self, column: str, *, most: int = LARGEST_COUNT) -> int | None:
        if not self.text(column):
            return None
        if not self.text(column).isascii() or not self.text(column).isdigit() or int(self.text(column)) > most:
            raise self.error(column, f"is not a whole number up to {most:,}")
        return int(self.text(column))

    def yes(self, column: str) -> bool:
        if self.text(column) not in ("", "yes", "no"):
            raise self.error(column, "is neither yes nor no")
        return self.text(column) != "no"

    def instant(self, column: str) -> tuple[int, bool] | None:
        """Ns since the epoch, and whether only the day is known."""
        if not self.text(column):
            return None
        try:
            moment = datetime.fromisoformat(self.text(column))
        except ValueError as error:
            raise self.error(column, "is not a time like 2022-03-21T12:34Z or a date like 2022-03-21") from error
        to_the_day = len(self.text(column)) == len("2022-03-21")
        if moment.tzinfo is None and not to_the_day:
            raise self.error(column, "has no time zone; add Z for UTC, or an offset like +01:00")
        moment = moment.replace(tzinfo=UTC) if to_the_day else moment
        return round(moment.timestamp()) * SECOND_NS, to_the_day
