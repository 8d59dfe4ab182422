"""Make a run directory of traces that every command opens, one rank's trace after the other."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincope.errors import DataError, UsageError
from traincope.events import CLEAN, FORMAT_VERSION
from traincope.ingest.kineto import read_kineto
from traincope.store.job.manifests import MAX_RANKS
from traincope.store.layout import RANK_FILE, RUN_FILE, rank_directory, trace_file, window_step
from traincope.store.traces import KERNEL, Trace, write_trace
from traincope.whole_files import written_aside

RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of one imported trace."""

    source: Path
    rank: int
    rule: str
    """Source of the rank: the trace, its file's name or directory, or its place among the traces."""
    num_read: int
    num_kept: int
    lost: str | None


def import_traces(paths: Sequence[Path], target: Path) -> tuple[Imported, ...]:
    """Make the run directory `target`, which must not exist, of traces of torch's profiler, plain or gzip.

    Raises UsageError if it cannot be made, DataError for a file that is not a trace. On an error nothing remains of it.
    """
    if target.exists():
        raise UsageError(f"{target} exists already; choose another directory with -o")
    try:
        with written_aside(target) as new_path:
            new_path.mkdir(parents=True)
            return _import(paths, new_path, name=target.name)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


def _import(paths: Sequence[Path], target: Path, *, name: str) -> tuple[Imported, ...]:
    results: list[Imported] = []
    world_size, began_ns = 1, []
    for path in paths:
        trace = read_kineto(path, step=window_step(path))
        if not len(trace):
            raise DataError(f"{path} contains no event with a duration, so there is nothing to import")
        rank, rule = _rank(path, trace, taken={imported.rank for imported in results})
        directory = rank_directory(target, attempt=0, rank=rank)
        directory.mkdir(parents=True, exist_ok=True)
        number = sum(imported.rank == rank for imported in results)
        write_trace(directory / trace_file(number), replace(trace, info=replace(trace.info, rank=rank)))
        if not number:
            _write(directory / RANK_FILE, _rank_card(trace, rank=rank))
        world_size = max(world_size, trace.info.world_size or 0, rank + 1)
        began_ns.append(int(trace.start_ns[0]))
        results.append(_imported(path, trace, rank=rank, rule=rule))
    _write(target / RUN_FILE, _run_card(name, world_size=min(world_size, MAX_RANKS), began_ns=min(began_ns)))
    return tuple(results)


def _imported(path: Path, trace: Trace, *, rank: int, rule: str) -> Imported:
    return Imported(
        source=path, rank=rank, rule=rule, num_read=trace.info.num_read, num_kept=len(trace), lost=trace.info.lost
    )


def _rank(path: Path, trace: Trace, *, taken: set[int]) -> tuple[int, str]:
    """Rank by the trace itself, otherwise by its file's or directory's name, otherwise the first free number."""
    if trace.info.rank is not None and trace.info.rank < MAX_RANKS:
        return trace.info.rank, "from the trace"
    for text in (path.name, path.parent.name):
        match = RANK_IN_NAME.search(text)
        if match and int(match.group(1)) < MAX_RANKS:
            return int(match.group(1)), f"from the name {text}"
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    return free, "from its place in the list: neither trace nor name contains it"


def _run_card(name: str, *, world_size: int, began_ns: int) -> dict[str, Any]:
    return {
        "version": FORMAT_VERSION,
        "id": name,
        "imported": True,
        "world_size": world_size,
        "mesh": {},
        "started_wall_ns": began_ns,
        "versions": {},
        "command": "traincope import",
        "settings": {},
    }


def _rank_card(trace: Trace, *, rank: int) -> dict[str, Any]:
    """Manifest of a rank. Each rank is its own host: the difference of their clocks is unknown."""
    return {
        "version": FORMAT_VERSION,
        "rank": rank,
        "coords": {},
        "host": f"imported-{rank}",
        "boot_id": "",
        "pid": 0,
        "started_wall_ns": int(trace.start_ns[0]),
        "ended_wall_ns": int(trace.end_ns.max()),
        "ending": CLEAN,
        "probes": {},
        "device": _device(trace),
    }


def _device(trace: Trace) -> dict[str, Any]:
    """The GPU that ran most kernels."""
    lanes = np.bincount(trace.lane[trace.of_category(KERNEL)], minlength=len(trace.lanes) or 1)
    if not lanes.any():
        return {}
    name = trace.info.devices.get(trace.lanes[int(lanes.argmax())].process)
    return {} if name is None else {"name": name, "count": len(trace.info.devices)}


def _write(path: Path, card: dict[str, Any]) -> None:
    path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
