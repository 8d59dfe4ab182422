"""What the agent of a job that is over leaves beside its records: the run cut into tiles, that a viewer opens at once.

Of a job's agents that of rank 0 does so, once all ranks are over. Where it cannot know, as when a rank of another host
was killed, where tiles would take too much or a viewer makes them in no time, and while a job runs, viewers make their
own: the same, by the same functions.
"""

import logging
import shutil
import time
from pathlib import Path

from traincope.errors import RunDirectoryError, TraincopeError
from traincope.events import RECORD_BYTES
from traincope.live.processes import is_running
from traincope.record.identity import this_host
from traincope.store.cards import RankInfo, read_rank_info, read_run_info
from traincope.store.layout import SEGMENT, attempt_directory, rank_directory, records_of

logger = logging.getLogger(__name__)

BYTES_OF_TILES = 130
"""About what a record takes of them."""
BYTES_COMPACTED = 7
"""About what it takes in Parquet."""
PATIENCE_SECONDS, GLANCE_SECONDS = 30.0, 1.0
FEWEST_RECORDS = 10_000
"""Those of fewer a viewer makes in a second."""
MOST_RECORDS = 16_000_000
"""Reading more takes more memory than is ours to take of a node: 3 GiB or so."""


def leave_tiles(
    run: Path, *, attempt: int, disk_budget_bytes: int, patience_seconds: float = PATIENCE_SECONDS
) -> Path | None:
    """Where they lie; None where there are none. `disk_budget_bytes`: of a rank, in mean.

    Ranks of other hosts may end a little later. Nothing is raised: why they cannot be made is logged.
    """
    try:
        if not _is_worth_it(run, attempt, disk_budget_bytes=disk_budget_bytes):
            return None
        if not will_be_over(run, attempt, within_seconds=patience_seconds):
            return None
        from traincope.viewer.adopting import leave, left_tiles  # an agent that only watches needs none of it

        tiles = left_tiles(run)
        if not tiles.is_dir():
            leave(run, tiles)
    except (TraincopeError, OSError) as error:
        logger.warning("no tiles are left for viewers, they make their own: %s", error)
        return None
    return tiles


def will_be_over(run: Path, attempt: int, *, within_seconds: float) -> bool:
    """Whether the job is over, or so within this time; not for an agent of another host than rank 0's.

    Many would do the same. Raises RunDirectoryError where the run cannot be read.
    """
    if read_rank_info(rank_directory(run, attempt=attempt, rank=0)).host != this_host():
        return False
    until = time.monotonic() + within_seconds
    while not (over := is_over(run, attempt=attempt)) and time.monotonic() < until:
        time.sleep(GLANCE_SECONDS)
    return over


def is_over(run: Path, *, attempt: int) -> bool:
    """Whether no rank of the job will write anything more, and nobody has begun it anew.

    Raises RunDirectoryError where the run cannot be read.
    """
    if attempt_directory(run, attempt + 1).exists():
        return False
    ranks = range(read_run_info(run).world_size)
    return all(_has_ended(rank_directory(run, attempt=attempt, rank=rank)) for rank in ranks)


def _has_ended(rank: Path) -> bool:
    """One that did not say so has, where its process was of this host and is there no more."""
    try:
        info = read_rank_info(rank)
    except RunDirectoryError:
        return False
    return info.ending is not None or _is_gone(info)


def _is_gone(info: RankInfo) -> bool:
    return info.host == this_host() and not is_running(info.pid, since_wall_ns=info.started_wall_ns)


def _is_worth_it(run: Path, attempt: int, *, disk_budget_bytes: int) -> bool:
    found = num_records(run, attempt)
    allowed = min(disk_budget_bytes * len(_ranks(run, attempt)), shutil.disk_usage(run).free // 2)
    return FEWEST_RECORDS <= found <= MOST_RECORDS and found * BYTES_OF_TILES <= allowed


def num_records(run: Path, attempt: int) -> int:
    """Of all ranks, about: by the sizes of their files."""
    return sum(_records_in(path) for rank in _ranks(run, attempt) for path in records_of(rank))


def _ranks(run: Path, attempt: int) -> list[Path]:
    return [path for path in attempt_directory(run, attempt).glob("rank-*") if path.is_dir()]


def _records_in(path: Path) -> int:
    return path.stat().st_size // (RECORD_BYTES if path.suffix == SEGMENT else BYTES_COMPACTED)
