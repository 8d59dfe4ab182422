"""Tiles that the agent of a finished job leaves in the run directory, so that a viewer opens the run at once.

The agent of rank 0 writes them once all ranks are over. It skips them if a rank of another host may still run or has
its directory elsewhere, if they would take too much space, or if a viewer makes them in no time. Viewers then make the
same tiles with the same functions.
"""

import logging
import shutil
import time
from pathlib import Path

from traincope.errors import RunDirectoryError, TraincopeError
from traincope.events import RECORD_BYTES
from traincope.record.session.identity import this_host
from traincope.store.job.manifests import read_rank_info, read_run_info
from traincope.store.layout import SEGMENT, attempt_directory, rank_directory, record_files

logger = logging.getLogger(__name__)

TILE_BYTES_PER_RECORD = 130
"""Approximate size of the tiles per event."""
PARQUET_BYTES_PER_RECORD = 7
"""Approximate size of an event in Parquet."""
PATIENCE_SECONDS, POLL_SECONDS = 30.0, 1.0
MIN_RECORDS = 10_000
"""A viewer makes the tiles of fewer events in about a second."""
MAX_RECORDS = 16_000_000
"""Limit of events to read: more would take over 3 GiB of the node's memory."""


def ship_tiles(
    run: Path, *, attempt: int, disk_budget_bytes: int, patience_seconds: float = PATIENCE_SECONDS
) -> Path | None:
    """Write the tiles, and return their directory; None if there are none. `disk_budget_bytes`: mean per rank.

    Waits a little for ranks of other hosts. Errors are logged, not raised.
    """
    try:
        if not _are_tiles_worthwhile(run, attempt, disk_budget_bytes=disk_budget_bytes):
            return None
        if not wait_until_over(run, attempt, within_seconds=patience_seconds):
            return None
        from traincope.viewer.library.shipped_tiles import (  # not needed by an agent without tiles
            shipped_path,
            write_shipped,
        )

        tiles = shipped_path(run)
        if not tiles.is_dir():
            write_shipped(run, tiles)
    except (TraincopeError, OSError) as error:
        logger.warning("cannot write tiles, so viewers make their own: %s", error)
        return None
    return tiles


def wait_until_over(run: Path, attempt: int, *, within_seconds: float) -> bool:
    """Wait until the job is over; False after the time limit, on other hosts than rank 0's, whose agents would do the
    same work, and at once if each host has a run directory of its own: no agent sees all ranks then.

    Raises RunDirectoryError if the run cannot be read.
    """
    ranks = [rank_directory(run, attempt=attempt, rank=rank) for rank in range(read_run_info(run).world_size)]
    if not all(rank.is_dir() for rank in ranks) or read_rank_info(ranks[0]).host != this_host():
        return False
    until = time.monotonic() + within_seconds
    while not (over := is_over(run, attempt=attempt)) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return over


def is_over(run: Path, *, attempt: int) -> bool:
    """True if no rank of the job will write anything more, and no later attempt began.

    Raises RunDirectoryError if the run cannot be read.
    """
    if attempt_directory(run, attempt + 1).exists():
        return False
    ranks = range(read_run_info(run).world_size)
    return all(_has_ended(rank_directory(run, attempt=attempt, rank=rank)) for rank in ranks)


def _has_ended(rank: Path) -> bool:
    """True if the rank recorded its end, or its process was on this host and does not run any more."""
    try:
        info = read_rank_info(rank)
    except RunDirectoryError:
        return False
    return info.ending is not None or (info.process is not None and info.process.is_running() is False)


def _are_tiles_worthwhile(run: Path, attempt: int, *, disk_budget_bytes: int) -> bool:
    count = num_records(run, attempt)
    allowed = min(disk_budget_bytes * len(_ranks(run, attempt)), shutil.disk_usage(run).free // 2)
    return MIN_RECORDS <= count <= MAX_RECORDS and count * TILE_BYTES_PER_RECORD <= allowed


def num_records(run: Path, attempt: int) -> int:
    """Approximate number of events of all ranks, by the sizes of their files."""
    return sum(_estimate_records(path) for rank in _ranks(run, attempt) for path in record_files(rank))


def _ranks(run: Path, attempt: int) -> list[Path]:
    return [path for path in attempt_directory(run, attempt).glob("rank-*") if path.is_dir()]


def _estimate_records(path: Path) -> int:
    return path.stat().st_size // (RECORD_BYTES if path.suffix == SEGMENT else PARQUET_BYTES_PER_RECORD)
