"""Kernel traces of a run, read when it is opened: imported traces, and single steps that the recorder traced.

The traces of a large run stay on disk, and are read again, rank by rank, by each analysis that needs them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from traincope.errors import DataError, RunDirectoryError
from traincope.ingest.traces.kineto import read_kineto
from traincope.store import RankRecords, RunRecords
from traincope.store.layout import window_step
from traincope.store.side_tables.traces import KERNEL, MEMORY, Trace, read_trace
from traincope.units import count

MAX_JSON_BYTES = 512 << 20
"""Limit for traces in JSON, which take some seconds to read. Further traces can be imported."""


MAX_HELD_EVENTS = 8 << 20
"""Events of all traces up to which they stay in memory, at about 110 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Traces by rank, and problems with their files."""

    ranks: Mapping[int, tuple[Trace, ...]] = field(default_factory=dict)
    """Iterate over ranks one by one, and keep no trace of those before: each may be in memory for as long only."""
    problems: tuple[str, ...] = ()
    """One sentence for each trace that could not be read completely."""


def read_traces(run: RunRecords) -> Traces:
    """Read all imported traces, and the recorder's newest steps up to `MAX_JSON_BYTES`."""
    traces: dict[int, list[Trace]] = defaultdict(list)
    files: dict[int, list[Path]] = defaultdict(list)
    spans: dict[int, _Spans] = defaultdict(_Spans)
    num_events, problems = 0, []
    chosen, skipped = _within_budget(run.ranks)
    for rank, path in chosen:
        try:
            trace = _read(path, rank=rank)
        except (DataError, RunDirectoryError) as error:
            problems.append(str(error))
            continue
        name = trace.info.source or path.name
        if run.info.imported and (other := spans[rank].meets(trace)) is not None:
            problems.append(
                f"{name} and {other} are both of rank {rank}, and their GPU works at the same time, so {name} is left "
                "out: give it the rank that it is of, by its name (rank_N)"
            )
            continue
        files[rank].append(path)
        num_events += len(trace)
        if num_events <= MAX_HELD_EVENTS:
            traces[rank].append(trace)
        else:
            traces.clear()
        if trace.info.lost is not None:
            problems.append(f"{name} of rank {rank} is not whole: {trace.info.lost}")
        if trace.info.num_untimed:
            untimed = count(trace.info.num_untimed, "event")
            problems.append(
                f"{name} of rank {rank} has {untimed} without a valid time: a kernel among them is idle time"
            )
        if trace.info.num_twice:
            twice = count(trace.info.num_twice, "event")
            problems.append(f"{name} of rank {rank} has {twice} twice: each counts once")
        if trace.info.num_negative:
            negative = count(trace.info.num_negative, "event")
            problems.append(f"{name} of rank {rank} has {negative} with a negative duration, counted as 0 ns")
    if skipped:
        problems.append(
            f"{len(skipped):,} kernel traces are not read: together they exceed {MAX_JSON_BYTES >> 20} MiB of JSON. "
            f"Read them with traincope import. The first is {skipped[0]}"
        )
    held = {rank: tuple(traces[rank]) for rank in sorted(traces)}
    return Traces(ranks=held if num_events <= MAX_HELD_EVENTS else TracesOnDisk(files), problems=tuple(problems))


class _Spans:
    """When the GPUs of one rank worked in its traces."""

    def __init__(self) -> None:
        self._taken: list[tuple[str, str, int, int]] = []

    def meets(self, trace: Trace) -> str | None:
        """Return the source of an earlier trace in which a GPU worked while it did in this one; None without one."""
        rows = np.flatnonzero(trace.of_category(KERNEL, *MEMORY))
        own = []
        for gpu in {trace.lanes[lane].process for lane in np.unique(trace.lane[rows]).tolist()}:
            of_gpu = rows[np.array([lane.process == gpu for lane in trace.lanes])[trace.lane[rows]]]
            own.append((trace.info.source, gpu, int(trace.start_ns[of_gpu].min()), int(trace.end_ns[of_gpu].max())))
        for _, gpu, begin_ns, end_ns in own:
            for source, other, began_ns, ended_ns in self._taken:
                if gpu == other and begin_ns < ended_ns and began_ns < end_ns:
                    return source
        self._taken += own
        return None


class TracesOnDisk(Mapping[int, tuple[Trace, ...]]):
    """Traces by rank, of which only those of the rank that was asked for last are in memory."""

    def __init__(self, files: Mapping[int, Sequence[Path]]) -> None:
        self._files = {rank: tuple(files[rank]) for rank in sorted(files)}
        self._last: tuple[int, tuple[Trace, ...]] | None = None

    def __getitem__(self, rank: int) -> tuple[Trace, ...]:
        """Raises DataError or RunDirectoryError if a file has changed since the run was opened."""
        last = self._last
        if last is None or last[0] != rank:
            files = self._files[rank]
            last = self._last = None  # so that not two ranks are in memory
            last = self._last = (rank, tuple(_read(path, rank=rank) for path in files))
        return last[1]

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _read(path: Path, *, rank: int) -> Trace:
    trace = read_trace(path) if path.suffix == ".npz" else read_kineto(path, step=window_step(path))
    return replace(trace, info=replace(trace.info, rank=rank))


def _within_budget(ranks: Iterable[RankRecords]) -> tuple[list[tuple[int, Path]], list[Path]]:
    """Return the (rank, file) pairs to read, in order, and the files to skip."""
    files = [(rank.rank, path) for rank in ranks for path in rank.traces]
    spent, kept, skipped = 0, [], []
    for rank, path in sorted(files, key=lambda file: (-(window_step(file[1]) or 0), file)):
        spent += path.stat().st_size if path.suffix == ".json" else 0
        if spent <= MAX_JSON_BYTES:
            kept.append((rank, path))
        else:
            skipped.append(path)
    return sorted(kept), sorted(skipped)
