"""The processes of a job's ranks on this host, from any process of the job."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import UsageError
from traincope.record.session.identity import identify
from traincope.store.job.outside_stacks import NEEDS_ACCESS
from traincope.store.job.process import Process, children_of_all

JOB_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
"""Variables that have the same values in all ranks of a job, and together no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """The process of one rank."""

    rank: int
    process: Process
    environment: Mapping[str, str]
    """Environment at the start of the process."""

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcesses:
    """The ranks of one job on this host."""

    ranks: tuple[RankProcess, ...]
    world_size: int
    numbered: bool
    """No process has a rank in its environment: they are numbered in the order in which they were given."""


def find_ranks(pids: Sequence[int]) -> JobProcesses:
    """Find the ranks of the job of these processes: a launcher, or at least one of its ranks.

    Raises UsageError for a process that does not run or cannot be read, and for processes of several jobs.
    """
    given = [_readable(pid) for pid in dict.fromkeys(pids)]
    children = children_of_all()
    family = {pid for process in given for pid in (process.pid, *_descendants(process.pid, children))}
    candidates = _without_launchers({pid: each for pid in family if (each := _candidate(pid)) is not None})
    jobs = {_job(each) for each in candidates.values()}
    if len(jobs) > 1:
        raise UsageError("these processes belong to several jobs; give those of one job")
    if not candidates:
        numbered = [
            RankProcess(rank=number, process=each, environment=each.environment() or {})
            for number, each in enumerate(given)
        ]
        return JobProcesses(ranks=tuple(numbered), world_size=len(numbered), numbered=True)
    (job,) = jobs
    if any(job):
        everyone = {pid: each for pids in children.values() for pid in pids if (each := _candidate(pid)) is not None}
        candidates = _without_launchers(candidates | {pid: each for pid, each in everyone.items() if _job(each) == job})
    inherited = {
        child
        for pid, each in candidates.items()
        for child in _descendants(pid, children)
        if child in candidates and candidates[child].rank == each.rank
    }
    by_rank = {each.rank: each for pid, each in candidates.items() if pid not in inherited}
    sizes = (identify(each.environment).world_size for each in by_rank.values())
    return JobProcesses(
        ranks=tuple(by_rank[rank] for rank in sorted(by_rank)),
        world_size=max(max(by_rank) + 1, *sizes),
        numbered=False,
    )


def _readable(pid: int) -> Process:
    process = Process.of(pid)
    if process is None or not process.is_running():
        raise UsageError(f"no process {pid} runs on this host; give the process of a launcher or of a rank")
    if process.environment() is None:
        raise UsageError(f"process {pid} cannot be read; {NEEDS_ACCESS}")
    return process


def _candidate(pid: int) -> RankProcess | None:
    """The process if it is Python and has a rank. A data worker inherits its rank's."""
    if not _is_python(pid):
        return None
    process = Process.of(pid)
    environment = None if process is None else process.environment()
    if process is None or environment is None or (rank := identify(environment).rank) is None:
        return None
    return RankProcess(rank=rank, process=process, environment=environment)


def _without_launchers(candidates: dict[int, RankProcess]) -> dict[int, RankProcess]:
    """The processes with a rank of their own. A launcher in a SLURM task only has the task's number."""
    return {pid: each for pid, each in candidates.items() if "RANK" in each.environment} or candidates


def _is_python(pid: int) -> bool:
    """Judge by its program; where only the job's user may see that, by its command."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        program = _command(pid)
    return os.path.basename(program).startswith("python")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").partition("\0")[0]
    except OSError:
        return ""


def _job(each: RankProcess) -> tuple[str, ...]:
    return tuple(each.environment.get(name, "") for name in JOB_VARIABLES)


def _descendants(pid: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    for child in children.get(pid, ()):
        yield child
        yield from _descendants(child, children)
