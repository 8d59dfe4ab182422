"""Request a window in a running job, at steps so far ahead that every rank reads the request before it reaches them.

Nothing is agreed on between ranks. The requester reads from the segments how far the ranks are and how long their steps
take, and leaves time for a rank to look into the file.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import MissingDependencyError, RunDirectoryError, UsageError, refusals
from traincope.events import BLOCK_STEPS, DETAIL_LEVEL, OPEN, Kind
from traincope.store.job.manifests import RankInfo, read_rank_info, read_run_info
from traincope.store.job.requests import MAX_STEPS, PERSONS, Cause, WindowRequest, append_request, read_requests
from traincope.store.layout import LEVEL_FILE, attempt_directory, attempt_number, record_files
from traincope.store.segments.records import read_records
from traincope.store.segments.segments import RECORD_DTYPE
from traincope.units import duration

TRAINING_THREAD = "main"
LOOK_NS = 1_000_000_000
"""Interval at which a rank looks into the file, between two steps."""
LOCAL_MARGIN_NS = 2_000_000_000
REMOTE_MARGIN_NS = 60_000_000_000
"""Time until every rank can see a new file. Network file systems show it up to a minute late (nfs(5), `acdirmax`)."""
MAX_SILENCE_NS = 600_000_000_000
"""Age of the latest step of ranks on other hosts from which on the job is taken to be over."""
MEDIAN_STEPS = 32
"""Number of latest steps whose median is a rank's step time."""
MAX_SPEED_UP = 4
"""Steps that are shorter than the median by more than this do not count as the job's pace."""
MAX_RANKS = 16
"""Number of ranks that are read. They wait for each other, so all are within a few steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """How far a rank was when its records were read."""

    info: RankInfo
    running: bool | None
    """None: unknown, because the rank is on another host."""
    step: int | None
    """The latest step that it has begun, as far as this host can see; None before the first."""
    silent_ns: int
    """Time since that step began, of a rank on another host: later steps may not be visible here yet. Otherwise 0."""
    step_ns: int | None
    """Median of its latest step times; None before the first complete step."""
    shortest_step_ns: int | None
    """The shortest of them, but at least the median over `MAX_SPEED_UP`."""

    @property
    def over(self) -> bool:
        """True if the rank is known to write nothing more."""
        return self.info.ending is not None or self.running is False

    @property
    def unseen_steps(self) -> int:
        """Estimated number of later steps that this host cannot see yet."""
        return min(self.silent_ns, REMOTE_MARGIN_NS) // self.step_ns if self.step_ns else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far the ranks of a job are."""

    attempt: int
    ranks: tuple[RankProgress, ...]
    """At most `MAX_RANKS`; ranks on this host, if there are any."""
    all_local: bool
    """True if all ranks of the job run on this host."""

    @property
    def over(self) -> bool:
        return all(rank.over for rank in self.ranks)

    @property
    def silent_ns(self) -> int:
        """The shortest such time of the ranks that are not over."""
        return min((rank.silent_ns for rank in self.ranks if not rank.over), default=0)

    @property
    def step(self) -> int | None:
        """The latest step that any rank has begun."""
        return max((rank.step + rank.unseen_steps for rank in self.ranks if rank.step is not None), default=None)

    @property
    def behind_step(self) -> int | None:
        """The latest step that all running ranks have begun, as far as this host can see."""
        steps = [rank.step for rank in self.ranks if not rank.over]
        return None if not steps or None in steps else min(step for step in steps if step is not None)

    @property
    def shortest_step_ns(self) -> int | None:
        return min((rank.shortest_step_ns for rank in self.ranks if rank.shortest_step_ns is not None), default=None)

    @property
    def longest_step_ns(self) -> int | None:
        return max((rank.step_ns for rank in self.ranks if rank.step_ns is not None), default=None)


def last_attempt(run: Path) -> int:
    """Return the number of the last attempt. Raises RunDirectoryError if no rank has joined a group yet."""
    numbers = [number for path in run.glob("attempt-*") if (number := attempt_number(path)) is not None]
    if not numbers:
        raise RunDirectoryError(
            f"{run} has no attempt yet: no rank has joined its process group; try again when the training runs"
        )
    return max(numbers)


def job_progress(run: Path, *, attempt: int) -> JobProgress:
    """Read how far the job is. Raises RunDirectoryError if no rank can be read."""
    readable = []
    for directory in sorted(attempt_directory(run, attempt).glob("rank-*")):
        try:
            readable.append((directory, read_rank_info(directory)))
        except RunDirectoryError:
            continue
    if not readable:
        raise RunDirectoryError(f"{attempt_directory(run, attempt)} has no readable rank; is the path right?")
    running = {directory: _is_running(info) for directory, info in readable}
    local = [pair for pair in readable if running[pair[0]] is not None]
    chosen = _spread(local or readable)
    return JobProgress(
        attempt=attempt,
        ranks=tuple(_rank_progress(directory, info, running[directory]) for directory, info in chosen),
        all_local=len(local) == read_run_info(run).world_size,
    )


def first_step_for(progress: JobProgress) -> int | None:
    """Return the first block's begin that no rank reaches before it has read a new request; None without a step time.

    A rank looks into the file once a second, at the begin of a step. The slowest rank needs that second and one more
    step; meanwhile the fastest rank goes on.
    """
    step, shortest_ns, longest_ns = progress.step, progress.shortest_step_ns, progress.longest_step_ns
    if step is None or shortest_ns is None or longest_ns is None:
        return None
    margin_ns = LOCAL_MARGIN_NS if progress.all_local else REMOTE_MARGIN_NS
    ahead = math.ceil((LOOK_NS + margin_ns + 2 * longest_ns) / max(shortest_ns, 1)) + 1
    return math.ceil((step + ahead) / BLOCK_STEPS) * BLOCK_STEPS


def request_window(
    run: Path,
    *,
    num_steps: int,
    cause: Cause,
    at_step: int | None = None,
    kernels: bool = False,
    stacks: tuple[int, ...] = (),
    named: Path | None = None,
) -> WindowRequest:
    """Request `num_steps` steps in detail, as early as all ranks can have read the request.

    `named`: the run directory that users write to, if the records are elsewhere on this node.
    Raises RunDirectoryError if the job is over or has made no step, UsageError if it may not record detail, if a
    person's request is pending already, or if the request cannot be written.
    """
    if not 1 <= num_steps <= MAX_STEPS:
        raise UsageError(f"a window of {num_steps} steps is not possible; give 1 to {MAX_STEPS:,}")
    attempt = last_attempt(run)
    progress = job_progress(run, attempt=attempt)
    if progress.over:
        raise RunDirectoryError(
            f"{run} is not running: all its ranks have ended; a window can only be opened in a running job, and "
            "`traincope report` shows what this one recorded"
        )
    if progress.silent_ns > MAX_SILENCE_NS:
        raise RunDirectoryError(
            f"no rank of {run} is known to run: the latest step that this host can see began "
            f"{duration(progress.silent_ns)} ago; if the job runs, use a host of the job"
        )
    first_step = first_step_for(progress)
    if first_step is None:
        raise RunDirectoryError(f"{run} has completed no step yet; try again when the training has made its first step")
    if any(rank.info.level is not None and rank.info.level < DETAIL_LEVEL for rank in progress.ranks):
        raise UsageError(
            f"{run} records level 0, which has no detail; raise the level first: echo 1 > {(named or run) / LEVEL_FILE}"
        )
    if cause in PERSONS:
        _refuse_second(run, progress)
    request = WindowRequest(
        attempt=attempt,
        first_step=first_step,
        num_steps=num_steps,
        kernels=kernels,
        cause=cause,
        at_step=at_step,
        at_wall_ns=time.time_ns(),
        stacks=stacks,
    )
    try:
        append_request(run, request)
    except OSError as error:
        raise UsageError(
            f"the request cannot be written into {run}: {error.strerror}; do it as the user of the job"
        ) from error
    return request


def recent_steps(rank: Path, *, back_to: int | None = None) -> NDArray[np.void]:
    """STEP records of a rank, oldest first: at least the latest `MEDIAN_STEPS`, or all from step `back_to` on.

    Fewer if the rank has fewer, or if older files cannot be read.
    """
    parts: list[NDArray[np.void]] = []
    for records in _newest_first(rank):
        parts.insert(0, records[records["kind"] == Kind.STEP])
        steps = np.concatenate([part["step"] for part in parts])
        if len(steps) > MEDIAN_STEPS if back_to is None else len(steps) and steps[0] <= back_to:
            break
    return np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *parts])


def _newest_first(rank: Path) -> Iterator[NDArray[np.void]]:
    """Records of the training thread, file by file."""
    with refusals(rank):
        files = record_files(rank, thread=TRAINING_THREAD)
    for path in reversed(files):
        try:
            yield read_records(path).records
        except (RunDirectoryError, MissingDependencyError, FileNotFoundError):
            continue  # damaged, or compacted just now


def _refuse_second(run: Path, progress: JobProgress) -> None:
    """Raise UsageError if a person's request is pending."""
    behind = progress.behind_step
    for request in read_requests(run, attempt=progress.attempt):
        if request.cause in PERSONS and (behind is None or behind < request.end_step):
            raise UsageError(
                f"a window is already requested in {run}, by {request.reason}: steps {request.first_step + 1} to "
                f"{request.last_step}, the job is in step {progress.step}; try again after it"
            )


def _is_running(info: RankInfo) -> bool | None:
    return None if info.process is None else info.process.is_running()


def _spread(readable: Sequence[tuple[Path, RankInfo]]) -> list[tuple[Path, RankInfo]]:
    """At most `MAX_RANKS` of the ranks, evenly."""
    places = np.unique(np.linspace(0, len(readable) - 1, min(len(readable), MAX_RANKS)).astype(np.int64))
    return [readable[place] for place in places.tolist()]


def _rank_progress(directory: Path, info: RankInfo, running: bool | None) -> RankProgress:
    steps = recent_steps(directory)
    complete = steps[steps["end_ns"] != OPEN][-MEDIAN_STEPS:]
    lengths_ns = complete["end_ns"] - complete["start_ns"]
    step_ns = int(np.median(lengths_ns)) if len(complete) else None
    silent_ns = _age_ns(directory, int(steps["start_ns"][-1])) if len(steps) and running is None else 0
    return RankProgress(
        info=info,
        running=running,
        step=int(steps["step"][-1]) if len(steps) else None,
        silent_ns=silent_ns,
        step_ns=step_ns,
        shortest_step_ns=None if step_ns is None else max(int(lengths_ns.min()), step_ns // MAX_SPEED_UP),
    )


def _age_ns(directory: Path, at_ns: int) -> int:
    """Time since an instant of a rank on another host, by the wall clocks; 0 if it recorded no clock."""
    for records in _newest_first(directory):
        clocks = records[records["kind"] == Kind.CLOCK]
        if len(clocks):
            at_wall_ns = at_ns + int(clocks["value"][-1]) - int(clocks["start_ns"][-1])
            return max(time.time_ns() - at_wall_ns, 0)
    return 0
