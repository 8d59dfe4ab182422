"""Traces -> a run directory that every command opens, one rank's trace after the other."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincope.errors import DataError, UsageError
from traincope.events import CLEAN, FORMAT_VERSION
from traincope.ingest.kineto import read_kineto
from traincope.store.cards import MOST_RANKS
from traincope.store.layout import RANK_FILE, RUN_FILE, rank_directory, trace_file, window_step
from traincope.store.traces import KERNEL, Trace, write_trace

RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of one trace."""

    source: Path
    rank: int
    rule: str
    """What told the rank: the trace, its file's name or directory, or its place among the traces."""
    num_read: int
    num_kept: int
    lost: str | None


def import_traces(paths: Sequence[Path], target: Path) -> tuple[Imported, ...]:
    """Make the run directory `target`, which must not exist, of traces of torch's profiler, plain or gzip.

    Raises UsageError where it cannot be made, DataError for a file that is no trace; then nothing is left of it.
    """
    if target.exists():
        raise UsageError(f"{target} is there already; give another place with -o")
    unborn = target.with_name(f".{target.name}.importing")
    try:
        shutil.rmtree(unborn, ignore_errors=True)
        unborn.mkdir(parents=True)
        imported = _import(paths, unborn, name=target.name)
        unborn.rename(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unborn, ignore_errors=True)
    return imported


def _import(paths: Sequence[Path], target: Path, *, name: str) -> tuple[Imported, ...]:
    done: list[Imported] = []
    world_size, began_ns = 1, []
    for path in paths:
        trace = read_kineto(path, step=window_step(path))
        if not len(trace):
            raise DataError(f"{path} holds no event with a duration: there is nothing to import")
        rank, rule = _rank(path, trace, taken={one.rank for one in done})
        directory = rank_directory(target, attempt=0, rank=rank)
        directory.mkdir(parents=True, exist_ok=True)
        number = sum(one.rank == rank for one in done)
        write_trace(directory / trace_file(number), replace(trace, info=replace(trace.info, rank=rank)))
        if not number:
            _write(directory / RANK_FILE, _rank_card(trace, rank=rank))
        world_size = max(world_size, trace.info.world_size or 0, rank + 1)
        began_ns.append(int(trace.start_ns[0]))
        done.append(_imported(path, trace, rank=rank, rule=rule))
    _write(target / RUN_FILE, _run_card(name, world_size=min(world_size, MOST_RANKS), began_ns=min(began_ns)))
    return tuple(done)


def _imported(path: Path, trace: Trace, *, rank: int, rule: str) -> Imported:
    return Imported(
        source=path, rank=rank, rule=rule, num_read=trace.info.num_read, num_kept=len(trace), lost=trace.info.lost
    )


def _rank(path: Path, trace: Trace, *, taken: set[int]) -> tuple[int, str]:
    """The trace's own word, else its file's or directory's name, else the first number that is free."""
    if trace.info.rank is not None and trace.info.rank < MOST_RANKS:
        return trace.info.rank, "told by the trace"
    for text in (path.name, path.parent.name):
        told = RANK_IN_NAME.search(text)
        if told and int(told.group(1)) < MOST_RANKS:
            return int(told.group(1)), f"by the name {text}"
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    return free, "by its place: nothing tells it"


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
    """Each rank is a host of its own: nothing tells how far their clocks are apart."""
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
