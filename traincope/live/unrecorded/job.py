"""A job that records nothing of ours, as the records of a run: processes and stacks, and dumps that the job wrote.

One look cannot tell a hang from a step. So each rank is looked at several times, and only a rank whose training thread
stands at the same lines in all looks has a stack.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from traincope.analysis.faults.stacks import training_thread
from traincope.events import Kind
from traincope.live.unrecorded.processes import JobProcesses, RankProcess, find_ranks
from traincope.record.session.identity import this_host, this_node
from traincope.record.session.options import OUT_VARIABLE
from traincope.store import RECORD_DTYPE, Look, RankRecords, RunRecords
from traincope.store.job.flight import FlightFile
from traincope.store.job.looks import look_at
from traincope.store.job.manifests import RankInfo, RunInfo
from traincope.store.job.outside_stacks import NOT_INSTALLED, Stacks, find_py_spy, read_stacks
from traincope.store.segments.segments import SegmentRecords
from traincope.topology import RankCoord
from traincope.units import numbers

LOOKS = 6
APART_SECONDS = 1.0
MAX_WAITS = 5
"""A thread that stands still may poll once a second. One that is only slow goes to sleep in each of its steps."""
READERS = 8
"""Number of processes that are read at once."""
DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the prefix of the files of torch's flight recorder; the rank follows."""
DEFAULT_DUMP = "torch/comm_lib_trace_rank_"
"""The prefix without them, in the user's cache."""
OLDER_DUMP = Path("/tmp/nccl_trace_rank_")
"""The prefix before torch 2.8."""
GPU_LIBRARIES = ("libcuda.so", "libamdhip64.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedJob:
    """Records of a job, made from what its processes show."""

    records: RunRecords
    lacks: tuple[str, ...]
    """One sentence for each question without an answer, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """All looks at one rank."""

    rank: RankProcess
    stacks: tuple[Stacks, ...]
    first_wall_ns: int
    look: Look | None
    """The last one; None if the process ended."""
    num_waits: int
    """How often its main thread went to sleep between the first look and the last."""

    @property
    def stood(self) -> bool:
        """True if its training thread stood at the same lines in all looks, and hardly woke up in between."""
        frames = {training_thread(each.text) for each in self.stacks}
        return len(frames) == 1 and () not in frames and self.num_waits <= MAX_WAITS

    @property
    def moved(self) -> bool:
        return not self.stood and len([each for each in self.stacks if each.text]) > 1


def look_at_job(pids: Sequence[int]) -> UnrecordedJob:
    """Ask the ranks of the job of these processes. It takes some seconds. Raises UsageError, like `find_ranks`."""
    job = find_ranks(pids)
    py_spy = find_py_spy()
    seen = tuple(_look(job, py_spy=py_spy))
    flights = {each.rank.rank: path for each in seen if (path := _dump(each.rank)) is not None}
    here = [each for each in seen if each.look is not None]
    versions = {"cuda": "unknown"} if any(_is_on_gpu(each.rank) for each in here) else {}
    present = {each.rank.rank for each in here}
    records = RunRecords(
        path=Path(f"/proc/{job.ranks[0].pid}"),
        info=RunInfo(
            id=f"processes {', '.join(str(each.pid) for each in job.ranks)}",
            world_size=job.world_size,
            mesh={},
            started_wall_ns=min(each.first_wall_ns for each in seen),
            versions=versions,
            command="",
            settings={},
            imported=True,
        ),
        ranks=tuple(_records(each, flights.get(each.rank.rank)) for each in here),
        attempts=1,
        missing=tuple(rank for rank in range(job.world_size) if rank not in present),
        problems=(),
    )
    return UnrecordedJob(records=records, lacks=tuple(_lacks(job, seen, flights, py_spy=py_spy)))


def _look(job: JobProcesses, *, py_spy: str | None) -> Iterator[_Seen]:
    first_wall_ns, waits = time.time_ns(), [each.process.num_waits() for each in job.ranks]
    looks: Sequence[Sequence[Stacks]] = ()
    if py_spy is not None:
        looks = list(_stacks(job, py_spy=py_spy))
    for at, rank in enumerate(job.ranks):
        now, wall_ns = look_at(rank.process), time.time_ns()
        seen = _Seen(
            rank=rank,
            stacks=tuple(look[at] for look in looks),
            first_wall_ns=first_wall_ns,
            look=None if now is None else replace(now, at_ns=wall_ns),
            num_waits=rank.process.num_waits() - waits[at],
        )
        stack = seen.stacks[-1].text if seen.stood else ""
        yield seen if seen.look is None else replace(seen, look=replace(seen.look, stack=stack))


def _stacks(job: JobProcesses, *, py_spy: str) -> Iterator[Sequence[Stacks]]:
    """The ranks' stacks at each look; one look only if none can be read."""
    with ThreadPoolExecutor(READERS) as readers:
        for number in range(LOOKS):
            time.sleep(APART_SECONDS if number else 0)
            look = list(readers.map(lambda each: read_stacks(each.pid, py_spy=py_spy), job.ranks))
            yield look
            if not any(each.text for each in look):
                return


def _records(seen: _Seen, dump: Path | None) -> RankRecords:
    """A rank with one record of the clock, which is the wall clock. Without a dump, a second one has the first look:
    nothing is known of the time before.
    """
    records = np.zeros(1 if dump is not None else 2, dtype=RECORD_DTYPE)
    records["kind"][0] = Kind.CLOCK
    if dump is None:
        records["kind"][1] = Kind.SPAN
        records["start_ns"][1] = records["end_ns"][1] = seen.first_wall_ns
    assert seen.look is not None
    return RankRecords(
        attempt=0,
        info=RankInfo(
            coord=RankCoord(rank=seen.rank.rank),
            host=this_host(),
            node=this_node(seen.rank.environment),
            pid=seen.rank.pid,
            process=seen.rank.process,
            started_wall_ns=seen.first_wall_ns,
            ended_wall_ns=None,
            ending=None,
            probes={},
            recorder={},
        ),
        names=("first look",),
        groups=(),
        segments=(SegmentRecords(thread="main", index=0, records=records, lost_bytes=0),),
        problems=(),
        running=True,
        looks=(seen.look,),
        flight=None if dump is None else FlightFile(dump),
    )


def _dump(rank: RankProcess) -> Path | None:
    """The rank's dump of torch's flight recorder, if this process wrote it."""
    given = [Path(rank.environment[name]) for name in DUMP_VARIABLES if rank.environment.get(name)]
    home = Path(rank.environment.get("HOME", "/tmp"))
    cache = Path(rank.environment.get("XDG_CACHE_HOME") or home / ".cache")
    for prefix in given[:1] or [cache / DEFAULT_DUMP, OLDER_DUMP]:
        path = Path(f"{prefix}{rank.rank}")
        with suppress(OSError):
            if path.stat().st_mtime >= rank.process.started_wall_seconds():
                return path
    return None


def _is_on_gpu(rank: RankProcess) -> bool:
    try:
        maps = Path(f"/proc/{rank.pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return any(library in maps for library in GPU_LIBRARIES)


def _lacks(
    job: JobProcesses, seen: Sequence[_Seen], flights: Mapping[int, Path], *, py_spy: str | None
) -> Iterator[str]:
    recorded = next((out for each in job.ranks if (out := each.environment.get(OUT_VARIABLE))), None)
    if recorded is not None:
        yield f"this job is recorded, which shows more: traincope hang {recorded}"
    if py_spy is None:
        yield f"no stack is known, because {NOT_INSTALLED}"
    for each in seen:
        if each.look is None:
            yield f"rank {each.rank.rank} (process {each.rank.pid}) ended during the looks"
    yield from dict.fromkeys(each.stacks[-1].problem for each in seen if each.stacks and each.stacks[-1].problem)
    moved = [each.rank.rank for each in seen if each.moved and each.look is not None]
    if moved:
        where = "all ranks" if len(moved) == len(seen) else numbers(moved, "rank")
        yield f"{where} went on between {LOOKS} looks at {len(seen)} processes: no hang, a slow rank, or a loop"
    if job.numbered:
        yield (
            "no process has a rank in its environment (RANK, SLURM_PROCID): they are numbered in the given order; give "
            "all of them, because a rank that is left out may be the culprit"
        )
    absent = [rank for rank in range(job.world_size) if rank not in {each.rank for each in job.ranks}]
    if absent:
        what = f"{numbers(absent, 'rank')} of {job.world_size}"
        yield f"{what} cannot be seen here, so no stack decides: ended, or on another host (run this command there too)"
    if not flights:
        yield (
            "collectives are not known: the processes wrote no dump of torch's flight recorder, and nothing was "
            "recorded (traincope run)"
        )
    if os.geteuid() and any(each.look is not None and not each.look.wait_channel for each in seen):
        yield "the kernel hides in what the processes sleep (/proc/PID/wchan); run this command as root to see it"
