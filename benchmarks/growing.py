"""A run that grows in real time: the records of a large run, each written at its end, by one process for all ranks."""

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Kind
from traincope.record.session.identity import this_host
from traincope.store import read_run
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE, RUN_FILE, rank_directory, segment_path
from traincope.store.segments.segments import HEADER_BYTES, SegmentFile

TICK_SECONDS = 0.05
AHEAD_NS = 500_000_000


@dataclass(slots=True, kw_only=True)
class _Rank:
    """Remaining records of one rank, and their file."""

    records: NDArray[np.void]
    ready_ns: NDArray[np.int64]
    """Time at which each record may be written: when it and all earlier ones have ended."""
    segment: SegmentFile
    written: int = 0

    def write_until(self, now_ns: int) -> None:
        until = int(np.searchsorted(self.ready_ns, now_ns, side="right"))
        part, size = self.records[self.written : until], self.records.itemsize
        if len(part):
            begin = HEADER_BYTES + self.written * size
            self.segment.map[begin : begin + part.nbytes] = part.tobytes()
            self.written = until


class GrowingRun:
    """All ranks of the run `source`, with this process as their process."""

    def __init__(self, source: Path, out: Path) -> None:
        source = read_run(source)
        out.mkdir()
        shutil.copyfile(source.path / RUN_FILE, out / RUN_FILE)
        begins = [int(rank.thread("main")["start_ns"].min()) for rank in source.ranks]
        shift_ns = monotonic_ns() + AHEAD_NS - min(begins)
        self._ranks = []
        for rank in source.ranks:
            directory = rank_directory(out, attempt=0, rank=rank.rank)
            directory.mkdir(parents=True)
            old = rank_directory(source.path, attempt=0, rank=rank.rank)
            for name in (NAMES_FILE, GROUPS_FILE):
                shutil.copyfile(old / name, directory / name)
            (directory / RANK_FILE).write_text(json.dumps(_alive(json.loads((old / RANK_FILE).read_text()))))
            records = _shifted(rank.thread("main"), shift_ns)
            ready = np.maximum.accumulate(np.maximum(records["start_ns"], records["end_ns"]))
            segment = SegmentFile(segment_path(directory, thread="main", index=0), capacity=len(records))
            self._ranks.append(_Rank(records=records, ready_ns=ready, segment=segment))

    @property
    def num_written(self) -> int:
        return sum(rank.written for rank in self._ranks)

    def grow(self, seconds: float) -> None:
        """Write the records in real time."""
        until_ns = monotonic_ns() + round(seconds * 1e9)
        while monotonic_ns() < until_ns:
            for rank in self._ranks:
                rank.write_until(monotonic_ns())
            time.sleep(TICK_SECONDS)


def _alive(card: dict[str, object]) -> dict[str, object]:
    host = this_host()
    identity = {"pid": os.getpid(), "host": host.name, "boot_id": host.boot_id, "started_wall_ns": time.time_ns()}
    return {**card, **identity, "ending": None, "ended_wall_ns": None}


def _shifted(records: NDArray[np.void], by_ns: int) -> NDArray[np.void]:
    shifted = records.copy()
    shifted["start_ns"] += by_ns
    shifted["end_ns"] += np.where(records["end_ns"] == OPEN, 0, by_ns)
    clocks = shifted["kind"] == Kind.CLOCK
    shifted["value"][clocks] = shifted["start_ns"][clocks] + time.time_ns() - monotonic_ns()
    return shifted
