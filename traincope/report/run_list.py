"""List of the runs below a directory, each from its small files only: manifests, notes, and its last report.

No records are read, so a thousand runs take seconds. A damaged run is listed with the reason. `judged_so_far` reads the
records of those that run.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincope.errors import TraincopeError, UsageError
from traincope.events import CLEAN
from traincope.store.job.hang_notices import HangNotice, Progress, StopState, read_notices, standing_notice
from traincope.store.job.launcher import notes_path, read_notes
from traincope.store.job.manifests import RankInfo, read_rank_info, read_run_info
from traincope.store.layout import (
    BRIEF_FILE,
    RANK_FILE,
    ROWS_FILE,
    RUN_FILE,
    STANDING_FILE,
    TILES_DIRECTORY,
    attempt_number,
    rank_number,
)
from traincope.store.lines import parse, read_object
from traincope.store.places.fetched import Needs, local_copy
from traincope.tiles.storage import DOCUMENT_FILE
from traincope.timeline.observation import NATIVE_PROBE, Recorder, recorded_by, why_not_native
from traincope.units import count, numbers

if TYPE_CHECKING:
    from traincope.report.so_far import VerdictSoFar

MAX_DEPTH = 6
"""Deepest level below the directory at which runs are looked for."""
SILENT_SECONDS = 300.0
"""Age of the newest row up to which a run on another host counts as running. Agents write rows every few seconds."""
TAIL_BYTES = 64 << 10
MAX_JUDGED = 8
"""Most running runs that are judged, the newest: each takes up to some seconds."""
MAX_BYTES = 16 << 20
"""Most bytes of records of a run of which events are read."""


class RunState(StrEnum):
    RUNNING = "running"
    HUNG = "hung"
    """Its agent has announced a hang since its last step, and it is not known to have ended."""
    DONE = "done"
    """All of its ranks ended cleanly."""
    DEAD = "dead"
    """A rank ended otherwise, or was killed."""
    SILENT = "silent"
    """Nothing new, and its processes are on another host."""
    IMPORTED = "imported"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run. None: unknown without reading its records."""

    path: Path
    state: RunState
    id: str | None = None
    world_size: int | None = None
    attempts: int | None = None
    started_wall_ns: int | None = None
    steps: int | None = None
    mfu: float | None = None
    """From its report. Without a report, the mean over hosts of their latest steps."""
    goodput: float | None = None
    """From its report. Without a report, the job's as the agent of the lowest rank wrote it."""
    verdict: str | None = None
    """The announced hang of a hung run, otherwise the first finding of its last report. Of a dead run without a report,
    the hang in which it ended.
    """
    title: str | None = None
    """The verdict's kind and ranks, in a few words."""
    problem: str | None = None
    """Why it is damaged, in one sentence."""
    recorder: Recorder | None = None
    """Recorder of the collectives of the last attempt; None: unknown."""
    why_python: str | None = None
    """Why the Python hooks recorded some rank."""
    workflow: str | None = None
    role: str | None = None
    """Name that jobs which work together share, and the name of this one among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastAttempt:
    directory: Path | None
    ranks: tuple[RankInfo, ...] = ()
    problem: str | None = None
    rows: tuple[Path, ...] = field(default_factory=tuple)


def list_runs(directory: Path, *, unreadable: Callable[[OSError], None] | None = None) -> Iterator[ListedRun]:
    """Yield the runs below `directory`, or itself, in the order of their paths. `unreadable`: as of `find_runs`."""
    for path in find_runs(directory, unreadable=unreadable):
        try:
            yield replace(_listed(local_copy(path, needs=Needs.LIST)), path=path)
        except (TraincopeError, OSError) as error:
            yield ListedRun(path=path, state=RunState.DAMAGED, problem=" ".join(str(error).split()))


def judged_so_far(runs: Sequence[ListedRun]) -> list[ListedRun]:
    """Add what the records of the newest running runs show: verdict, steps, MFU and goodput so far."""
    running = [run for run in runs if run.state is RunState.RUNNING and run.title is None]
    newest = sorted(running, key=lambda run: run.started_wall_ns or 0)[-MAX_JUDGED:]
    judged = {run.path: _judged(run) for run in newest}
    return [judged.get(run.path, run) for run in runs]


def _judged(run: ListedRun) -> ListedRun:
    """The run as its records are now; unchanged if they cannot be read."""
    from traincope.report.so_far import verdict_so_far  # the analyses: a list without running runs needs none

    try:
        so_far = verdict_so_far(run.path, max_bytes=MAX_BYTES)
    except (TraincopeError, OSError):
        return run
    document = {"verdict": so_far.findings}
    return replace(
        run,
        steps=run.steps if so_far.last_step is None else max(so_far.last_step + 1, run.steps or 0),
        mfu=run.mfu if so_far.mfu is None else so_far.mfu,
        goodput=run.goodput if so_far.goodput is None else so_far.goodput,
        verdict=_verdict(document) or so_far.late,
        title=title_so_far(so_far),
    )


def title_so_far(so_far: "VerdictSoFar") -> str:
    """The first finding that names ranks, otherwise the latest rank so far, otherwise the first finding."""
    first = so_far.findings[:1]
    if so_far.late is not None and not any(finding["ranks"] for finding in first):
        return so_far.late
    return f"{_title({'verdict': first})}, so far ({count(so_far.steps, 'step')})"


def find_runs(directory: Path, *, unreadable: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Yield run directories. It follows no links. `unreadable` gets the error of each directory that it skips.

    Raises UsageError if `directory` is not a directory.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory; give one with runs below it")
    base = len(directory.parts)
    for name, folders, files in os.walk(directory, onerror=unreadable):
        path = Path(name)
        folders.sort()
        if RUN_FILE in files or any(attempt_number(path / folder) is not None for folder in folders):
            folders.clear()
            yield path
        elif len(path.parts) - base >= MAX_DEPTH:
            folders.clear()


def _listed(run: Path) -> ListedRun:
    info, attempts = read_run_info(run), _attempts(run)
    last = _last_attempt(attempts)
    document = _document(run, last)
    standing = [] if document else _standing(last)
    notice = _notice(run, last)
    state = RunState.IMPORTED if info.imported else _state(run, last, notice, world_size=info.world_size)
    if last.problem and state not in (RunState.RUNNING, RunState.HUNG):
        state = RunState.DAMAGED
    hangs = notice is not None and (
        state is RunState.HUNG
        or (state is RunState.DEAD and not document)
        or (state is RunState.RUNNING and notice.state == StopState.STALL)
    )
    recorders = [each for rank in last.ranks if (each := rank.probes.get(NATIVE_PROBE)) is not None]
    return ListedRun(
        path=run,
        state=state,
        id=info.id,
        world_size=info.world_size,
        attempts=len(attempts),
        started_wall_ns=info.started_wall_ns,
        steps=_steps(last),
        mfu=_number(document, "utilization", "mfu", otherwise=_mean(standing, "mfu")),
        goodput=_number(document, "goodput", "productive_ratio", otherwise=_mean(standing[:1], "goodput")),
        verdict=notice.sentence if hangs and notice is not None else _verdict(document),
        title=_hang_title(notice) if hangs and notice is not None else _title(document),
        problem=last.problem,
        recorder=recorded_by(recorders),
        why_python=next(filter(None, map(why_not_native, recorders)), None),
        workflow=info.workflow,
        role=info.role,
    )


def _attempts(run: Path) -> list[Path]:
    return sorted(path for path in run.glob("attempt-*") if attempt_number(path) is not None)


def _last_attempt(attempts: list[Path]) -> _LastAttempt:
    """Manifests of the last attempt. The first that cannot be read is the problem."""
    if not attempts:
        return _LastAttempt(directory=None)
    ranks, problem = [], None
    directories = sorted(path.parent for path in attempts[-1].glob(f"rank-*/{RANK_FILE}"))
    for directory in directories:
        try:
            ranks.append(read_rank_info(directory))
        except TraincopeError as error:
            problem = problem or str(error)
    rows = tuple(path for directory in directories if (path := directory / ROWS_FILE).is_file())
    return _LastAttempt(directory=attempts[-1], ranks=tuple(ranks), problem=problem, rows=rows)


def _state(run: Path, last: _LastAttempt, notice: HangNotice | None, *, world_size: int) -> RunState:
    if last.directory is None or not last.ranks:
        return RunState.DEAD
    endings = [rank.ending for rank in last.ranks]
    if len(last.ranks) >= world_size and all(ending == CLEAN for ending in endings):
        return RunState.DONE
    number = attempt_number(last.directory)
    ended_by_signal = any(note.attempt == number for note in read_notes(notes_path(run)))
    if ended_by_signal or any(ending not in (None, CLEAN) for ending in endings):
        return RunState.DEAD
    running = [rank.process.is_running() if rank.process else None for rank in last.ranks if rank.ending is None]
    if running and all(each is False for each in running):
        return RunState.DEAD
    if (
        running and notice is not None and notice.state != StopState.STALL
    ):  # a job that hangs writes no rows, so their age shows nothing
        return RunState.HUNG
    newest = max((path.stat().st_mtime for path in last.rows), default=0.0)
    return RunState.RUNNING if any(running) or time.time() - newest < SILENT_SECONDS else RunState.SILENT


def _notice(run: Path, last: _LastAttempt) -> HangNotice | None:
    """The hang in which the last attempt stands, unless a later step is complete.

    The times of files do not count: agents write the rows of some steps later, and a copy of a store is younger.
    """
    number = None if last.directory is None else attempt_number(last.directory)
    notices = [notice for notice in read_notices(run) if notice.attempt == number]
    if not notices:
        return None
    rows = {rank_number(path.parent): row for path in last.rows if (row := _last_row(path)) is not None}
    going = [rank.coord.rank for rank in last.ranks if rank.ending != CLEAN]
    progress = Progress(
        next_steps={rank: rows[rank][0] + 1 if rank in rows else 0 for rank in going},
        last_step_ns=max((end_ns for _, end_ns in rows.values()), default=None),
    )
    return standing_notice(notices, progress)


def _steps(last: _LastAttempt) -> int | None:
    """Number of the last step in the rows of the lowest rank, counted from 1."""
    row = _last_row(last.rows[0]) if last.rows else None
    return None if row is None else row[0] + 1


def _last_row(path: Path) -> tuple[int, int] | None:
    """Step of the last whole row, and the earliest wall time in ns at which it can have ended: a row has no time of an
    evaluation in its step. None without a row.
    """
    with path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").split("\n")[:-1]
    for line in reversed(lines):
        match parse(line):
            case [int(step), int(start_ns), int(wall_ns), *_]:
                return step, start_ns + wall_ns
    return None


def _document(run: Path, last: _LastAttempt) -> dict[str, Any]:
    """The report that the last agent left, or the brief of `traincope run`, if it is not older than the last attempt.

    Empty without one.
    """
    left = [*run.glob(f"{TILES_DIRECTORY}/*/{DOCUMENT_FILE}"), *run.glob(BRIEF_FILE)]
    documents = sorted(left, key=lambda path: path.stat().st_mtime_ns)
    if not documents or last.directory is None:
        return {}
    manifests = [path.stat().st_mtime_ns for path in last.directory.glob(f"rank-*/{RANK_FILE}")]
    return read_object(documents[-1]) if documents[-1].stat().st_mtime_ns >= max(manifests, default=0) else {}


def _standing(last: _LastAttempt) -> list[dict[str, Any]]:
    """The last numbers of each host's agent, that of the lowest rank first. Damaged ones are left out."""
    standing = []
    for path in [] if last.directory is None else sorted(last.directory.glob(f"rank-*/{STANDING_FILE}")):
        with suppress(TraincopeError):
            standing.append(read_object(path))
    return standing


def _mean(standing: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [float(value) for each in standing if isinstance(value := each.get(name), int | float)]
    return sum(values) / len(values) if values else None


def _number(document: dict[str, Any], part: str, name: str, *, otherwise: float | None) -> float | None:
    """The number in the report; `otherwise` without a report."""
    values = document.get(part)
    value = values.get(name) if isinstance(values, dict) else None
    return float(value) if isinstance(value, int | float) else otherwise


def _first_finding(document: dict[str, Any]) -> dict[str, Any]:
    findings = document.get("verdict")
    first = findings[0] if isinstance(findings, Sequence) and findings else None
    return first if isinstance(first, dict) else {}


def _verdict(document: dict[str, Any]) -> str | None:
    first = _first_finding(document)
    return f"{first.get('kind')}: {first.get('evidence')}" if first else None


def _hang_title(notice: HangNotice) -> str:
    return f"hang on {numbers(notice.culprits, 'rank')}" if notice.culprits else "hang"


def _title(document: dict[str, Any]) -> str | None:
    match _first_finding(document):
        case {"kind": str(kind), "ranks": [_, *_] as ranks} if all(isinstance(rank, int) for rank in ranks):
            return f"{kind.replace('_', ' ')} on {numbers(ranks, 'rank')}"
        case {"kind": str(kind)}:
            return kind.replace("_", " ")
    return "no finding" if document else None
