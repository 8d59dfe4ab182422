"""Make a run directory of traces that every command opens. Several traces are read by two processes."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from traincope.errors import DataError, UsageError
from traincope.executors import start_method
from traincope.ingest.cards import NOTHING_GIVEN, Given, rank_card, run_card, write_card
from traincope.ingest.flight_recorder import holds_dumps
from traincope.ingest.foreign import ASCEND, begin, foreign_format, has_begins, is_of_ascend
from traincope.ingest.traces.kineto import read_kineto
from traincope.private_files import make_directory
from traincope.store.job.manifests import MAX_RANKS
from traincope.store.layout import RANK_FILE, RUN_FILE, rank_directory, trace_file, window_step
from traincope.store.side_tables.traces import (
    HOST_OPERATOR,
    KERNEL,
    MEMORY,
    PYTHON_FUNCTION,
    Trace,
    TraceInfo,
    write_trace,
)
from traincope.units import count
from traincope.whole_files import written_aside

RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)
NUMBERS = re.compile(r"([0-9]+)")
WORKER = re.compile(r"(.+?)\.\d+\.pt\.trace\.json(\.gz)?")
"""Names that `tensorboard_trace_handler` gives to the traces of a process: its worker's name, and the time."""
SUFFIXES = (".json", ".json.gz")
"""Names of the files that are taken from a folder end like this."""
KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"ph"')
"""The begin of a trace contains one of these keys."""
OF_TORCH = re.compile(
    "|".join(
        (KERNEL, *MEMORY, HOST_OPERATOR, PYTHON_FUNCTION, r"(gpu_)?user_annotation", r"[a-z0-9]+_(runtime|driver)")
    )
)
"""Categories of which a trace of torch's profiler has at least one."""
BY_PLACE = "from its place in the list: neither file nor name contains it"
MAX_NAMED = 4
WORTH_A_PROCESS = 4 << 20
"""Bytes of traces that take longer to read than a second process takes to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of one imported trace."""

    source: Path
    rank: int
    rule: str
    """Source of the rank: the trace, its file's name or directory, or its place among the traces."""
    num_read: int
    num_kept: int
    num_untimed: int
    num_negative: int
    num_twice: int
    lost: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """A file that is not a trace, or cannot be read, and the sentence that says so."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A trace that was read and written to `file`."""

    source: Path
    file: Path
    info: TraceInfo
    num_kept: int
    started_ns: int
    ended_ns: int
    device: dict[str, Any]
    process: tuple[str, str] | None
    """Host and number of the process that wrote it; None if the trace does not state them."""


def holds_traces(path: Path) -> bool:
    """Return whether the path is a file, or a folder with a trace. Other JSON lies in many folders."""
    return any(map(_may_be_trace, path.rglob("*"))) if path.is_dir() else path.is_file()


def _may_be_trace(path: Path) -> bool:
    """Look at the begin of a file."""
    head = begin(path) if path.name.lower().endswith(SUFFIXES) else b""
    return any(key in head for key in KEYS)


def find_traces(paths: Sequence[Path]) -> tuple[Path, ...]:
    """All files among files and folders that may be traces. Raises UsageError for a folder without one."""
    found: list[Path] = []
    for path in paths:
        named = (file for file in path.rglob("*") if file.name.lower().endswith(SUFFIXES) and not file.is_dir())
        inside = sorted(named, key=_by_numbers) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} contains no trace; the names of traces end in {' or '.join(SUFFIXES)}")
        found += inside
    return tuple(sorted(found, key=_by_numbers) if found == sorted(found) else found)


def _by_numbers(path: Path) -> tuple[tuple[bool, int, str], ...]:
    """Order of names in which trace_2 comes before trace_10: a rank may follow from a file's place."""
    parts = NUMBERS.split(str(path))
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


def import_traces(
    paths: Sequence[Path],
    target: Path,
    *,
    given: Given = NOTHING_GIVEN,
    processes: int = 1,
    on_read: Callable[[float], object] = lambda _: None,
    on_left_out: Callable[[str], object] | None = None,
) -> tuple[Imported, ...]:
    """Make the run directory `target`, which must not exist, of traces of torch's profiler, plain or gzip.

    A script that gives two `processes` must call this below `if __name__ == "__main__"`: the second process imports the
    script. `on_read` gets, from any thread, shares of a trace that are read; the sum is the number of traces.
    `on_left_out` gets a sentence for each file that is not a trace, and the others are imported. Raises DataError for
    such a file without `on_left_out`, and if no file is a trace; UsageError if the directory cannot be made. On an
    error nothing remains of it.
    """
    if target.exists():
        raise UsageError(f"{target} exists already; choose another directory with -o")
    try:
        with written_aside(target) as new_path:
            make_directory(new_path)
            several = len(paths) > 1 and sum(path.stat().st_size for path in paths if path.exists()) > WORTH_A_PROCESS
            read = _store_all(paths, new_path, processes=processes if several else 1, on_read=on_read)
            stored = [each for each in read if isinstance(each, _Stored)]
            refused = [each.reason for each in read if isinstance(each, _Refused)]
            if refused and (on_left_out is None or not stored):
                others = f"; {count(len(paths) - 1, 'other file')} cannot be read either"
                raise DataError(refused[0] + (others if len(refused) == len(paths) > 1 else ""))
            if on_left_out is not None:
                for reason in refused:
                    on_left_out(reason)
            return _arrange(stored, new_path, name=target.name, given=given)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    except BrokenProcessPool as error:
        raise DataError("a process that read traces was killed; import fewer traces at once") from error


def _store_all(
    paths: Sequence[Path], target: Path, *, processes: int, on_read: Callable[[float], object]
) -> tuple[_Stored | _Refused, ...]:
    """Store the traces in `target`. This process takes them from the end, the others from the begin."""
    files = [target / f"incoming-{number}.npz" for number in range(len(paths))]
    stored: dict[int, _Stored | _Refused | None] = {}
    if processes == 1:
        for number, (path, file) in enumerate(zip(paths, files, strict=True)):
            stored[number] = _store(path, file, on_read=on_read)
        return tuple(each for each in stored.values() if each is not None)
    with ProcessPoolExecutor(processes - 1, mp_context=get_context(start_method())) as pool:
        try:
            futures = [pool.submit(_store_unclaimed, path, file) for path, file in zip(paths, files, strict=True)]
            for future in futures:
                future.add_done_callback(lambda done: on_read(1) if _has_stored(done) else None)
            for number in reversed(range(len(paths))):
                stored[number] = _store_unclaimed(paths[number], files[number], on_read=on_read)
                if stored[number] is None:
                    break
            results = [stored.get(number) or future.result() for number, future in enumerate(futures)]
        finally:
            pool.shutdown(cancel_futures=True)
    for file in files:
        _claim(file).unlink()
    return tuple(each for each in results if each is not None)


def _has_stored(done: Future[_Stored | _Refused | None]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result() is not None


def _store_unclaimed(
    path: Path, file: Path, *, on_read: Callable[[float], object] = lambda _: None
) -> _Stored | _Refused | None:
    """Store a trace unless another process has begun to. The pool does not know: it counts queued ones as begun."""
    try:
        _claim(file).touch(exist_ok=False)
    except FileExistsError:
        return None
    return _store(path, file, on_read=on_read)


def _claim(file: Path) -> Path:
    return file.with_suffix(".claim")


def _store(path: Path, file: Path, *, on_read: Callable[[float], object]) -> _Stored | _Refused:
    share = _Share(path, on_read)
    try:
        trace = _read(path, on_read=share.add)
    except DataError as error:
        share.complete()
        return _Refused(reason=_not_read(path) or str(error))
    write_trace(file, trace)
    share.complete()
    return _Stored(
        source=path,
        file=file,
        info=trace.info,
        num_kept=len(trace),
        started_ns=int(trace.start_ns[0]),
        ended_ns=int(trace.end_ns.max()),
        device=_device(trace),
        process=_process(trace),
    )


class _Share:
    """Share of a trace that is read, reported as it grows."""

    def __init__(self, path: Path, on_read: Callable[[float], object]) -> None:
        self._size, self._on_read, self._reported = 0, on_read, 0.0
        with suppress(OSError):  # the reading says it
            self._size = path.stat().st_size

    def add(self, num_bytes: int) -> None:
        if self._size:
            self._report(min(self._reported + num_bytes / self._size, 1.0))

    def complete(self) -> None:
        self._report(1.0)

    def _report(self, share: float) -> None:
        self._on_read(share - self._reported)
        self._reported = share


def _read(path: Path, *, on_read: Callable[[int], object]) -> Trace:
    """Read a trace of torch's profiler. Raises DataError for any other file."""
    trace = read_kineto(path, step=window_step(path), on_read=on_read)
    if not len(trace):
        if has_begins(path):
            raise DataError(
                f"{path} has events in two parts (ph B and E), which are not read; write complete events (ph X), as "
                "torch's profiler does"
            )
        raise DataError(
            f"{path} contains no operator, kernel or range of torch's profiler, so there is nothing to import"
        )
    if not trace.of_category(KERNEL, *MEMORY).any() and is_of_ascend(path):
        raise DataError(f"{path} is {ASCEND.what}, which is not read; import a trace of torch's profiler")
    if not any(map(OF_TORCH.fullmatch, trace.categories)):
        listed = ", ".join(map(repr, trace.categories[:MAX_NAMED]))
        raise DataError(f"{path} is a trace of another tool: no event has a category of torch's profiler, but {listed}")
    return trace


def _not_read(path: Path) -> str | None:
    if holds_dumps(path):
        return f"{path} is of torch's flight recorder; see who waits for whom: traincope hang {path}"
    what = foreign_format(path)
    return None if what is None else f"{path} is {what}, which is not read; import a trace of torch's profiler"


def _arrange(stored: Sequence[_Stored], target: Path, *, name: str, given: Given) -> tuple[Imported, ...]:
    """Move the stored traces to the directories of their ranks, and describe the ranks and the run."""
    results: list[Imported] = []
    for place, trace in enumerate(stored):
        rank, rule = _rank(trace.source, trace.info, taken={imported.rank for imported in results})
        if trace.info.rank is None and (rule == BY_PLACE or _worker(trace.source) is not None):
            before = _before(trace, list(zip(stored[:place], results, strict=True)))
            if before is not None:
                rank, rule = before.rank, f"as {before.source.name} before it, of the same process"
        directory = rank_directory(target, attempt=0, rank=rank)
        make_directory(directory, exist_ok=True)
        number = sum(imported.rank == rank for imported in results)
        trace.file.rename(directory / trace_file(number))
        if not number:
            device = trace.device if given.gpu is None else {"count": 1, **trace.device, "name": given.gpu}
            card = rank_card(
                rank,
                coords={},
                host=f"imported-{rank}",  # its own host: the difference of the ranks' clocks is unknown
                started_ns=trace.started_ns,
                ended_ns=trace.ended_ns,
                device=device,
            )
            write_card(directory / RANK_FILE, card)
        results.append(
            Imported(
                source=trace.source,
                rank=rank,
                rule=rule,
                num_read=trace.info.num_read,
                num_kept=trace.num_kept,
                num_untimed=trace.info.num_untimed,
                num_negative=trace.info.num_negative,
                num_twice=trace.info.num_twice,
                lost=trace.info.lost,
            )
        )
    world_size = max(*(trace.info.world_size or 1 for trace in stored), *(imported.rank + 1 for imported in results))
    began_ns = min(trace.started_ns for trace in stored)
    card = run_card(name, world_size=min(world_size, MAX_RANKS), mesh={}, began_ns=began_ns, given=given)
    write_card(target / RUN_FILE, card)
    return tuple(results)


def _rank(path: Path, info: TraceInfo, *, taken: set[int]) -> tuple[int, str]:
    """Rank by the trace itself, otherwise by its file's or directory's name, otherwise the first free number."""
    if info.rank is not None and info.rank < MAX_RANKS:
        if info.world_size is not None and info.rank >= info.world_size:
            return info.rank, f"from the trace, though it says {count(info.world_size, 'rank')}"
        return info.rank, "from the trace"
    return rank_of(path, taken=taken)


def _before(trace: _Stored, others: Sequence[tuple[_Stored, Imported]]) -> Imported | None:
    """The first trace of the same process, whose profiler wrote one file per cycle; None if there is none.

    Ranks in containers can share a host's name and a process's number. Then their times overlap, as no cycles do.
    """
    worker = _worker(trace.source)
    if worker is not None:
        return next((result for other, result in others if _worker(other.source) == worker), None)
    same = [each for each in others if trace.process is not None and each[0].process == trace.process]
    overlapping = {result.rank for other, result in same if _overlap(trace, other)}
    return next((result for _, result in same if result.rank not in overlapping), None)


def _overlap(first: _Stored, second: _Stored) -> bool:
    return first.started_ns < second.ended_ns and second.started_ns < first.ended_ns


def _worker(path: Path) -> Path | None:
    """The process that wrote a trace, by the names of the file and its directory. It has one rank in all its traces."""
    match = WORKER.fullmatch(path.name)
    return None if match is None else path.with_name(match.group(1))


def rank_of(path: Path, *, taken: set[int]) -> tuple[int, str]:
    """Return the rank of a file by its or its directory's name, otherwise the first free number; and the rule."""
    for text in (path.name, path.parent.name):
        match = RANK_IN_NAME.search(text)
        if match and int(match.group(1)) < MAX_RANKS:
            return int(match.group(1)), f"from the name {text}"
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    return free, BY_PLACE


def _process(trace: Trace) -> tuple[str, str] | None:
    """Host and number of the process that called most operators."""
    calls = np.bincount(trace.lane[trace.of_category(HOST_OPERATOR)], minlength=len(trace.lanes) or 1)
    known = trace.info.host is not None and calls.any()
    return (str(trace.info.host), trace.lanes[int(calls.argmax())].process) if known else None


def _device(trace: Trace) -> dict[str, Any]:
    """The GPU that ran most kernels."""
    lanes = np.bincount(trace.lane[trace.of_category(KERNEL)], minlength=len(trace.lanes) or 1)
    if not lanes.any():
        return {}
    name = trace.info.devices.get(trace.lanes[int(lanes.argmax())].process)
    return {} if name is None else {"name": name, "count": len(trace.info.devices)}
