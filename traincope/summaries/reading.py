"""Summaries of all ranks of a run's last attempt, read by an executor."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import EmptyRunError, RunDirectoryError, UnreadableError, refusals
from traincope.store.job.manifests import RunInfo, read_run_info
from traincope.store.layout import ROWS_FILE, attempt_number, rank_number
from traincope.store.reading import chosen_attempt, find_run, unseen_by_workers
from traincope.summaries.rank import RankSummary, summarise_rank

RANKS_PER_TASK = 64
"""Ranks that a worker reads at once. A task's own cost is then small, and progress is seen."""

MANY_RANKS = 1_024
"""From this number of ranks on, rows are read instead of events if no other detail is asked for."""

Progress = Callable[[int, int], None]
"""Called with the number of ranks that were read, and of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summaries:
    """Summaries of a run's last attempt."""

    path: Path
    info: RunInfo
    ranks: tuple[RankSummary, ...]
    """In rank order."""
    attempts: int
    missing: tuple[int, ...]
    """Ranks of the world without a readable directory."""
    refused: tuple[int, ...] = ()
    """Ranks in `missing` whose directory is here, and whose files the system does not let this process read."""
    problems: tuple[str, ...]


def is_for_rows(path: str | Path) -> bool:
    """Return whether the last or the chosen attempt has at least MANY_RANKS ranks, and rows of any: an agent ran.

    Raises like `find_run`.
    """
    directories, _ = _directories(find_run(Path(path)), chosen_attempt(Path(path)))
    return len(directories) >= MANY_RANKS and any((directory / ROWS_FILE).is_file() for directory in directories)


def read_summaries(
    path: str | Path, *, executor: Executor | None = None, progress: Progress | None = None
) -> Summaries:
    """Read the summary of every rank. `executor`: its workers read; they must see the same files. None: this process.

    Raises NotARunError, EmptyRunError, VersionError or DataError as `read_run` does. Damage to single ranks is in
    `problems`.
    """
    root = find_run(Path(path))
    info = read_run_info(root)
    directories, attempts = _directories(
        root.absolute(), chosen_attempt(Path(path))
    )  # workers may have another working directory
    if not directories:
        raise EmptyRunError(f"{root} holds no rank; try again once training has begun")
    tasks = [directories[at : at + RANKS_PER_TASK] for at in range(0, len(directories), RANKS_PER_TASK)]
    ranks: list[RankSummary] = []
    problems: list[str] = []
    refused: list[int] = []
    num_read = 0
    results = map(_summarise, tasks) if executor is None else executor.map(_summarise, tasks)
    for task, (found, errors, unread) in zip(tasks, results, strict=True):
        ranks += found
        problems += errors
        refused += unread
        num_read += len(task)
        if progress is not None:
            progress(num_read, len(directories))
    if not ranks and _summarise(directories[:1])[0]:
        raise unseen_by_workers(root)
    if not ranks and refused:
        raise UnreadableError(problems[0])
    present = {rank.rank for rank in ranks}
    missing = () if info.imported else tuple(rank for rank in range(info.world_size) if rank not in present)
    return Summaries(
        path=root,
        info=info,
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        attempts=attempts,
        missing=missing,
        refused=tuple(rank for rank in missing if rank in refused),
        problems=(*problems, *(problem for rank in ranks for problem in rank.problems)),
    )


def _directories(root: Path, chosen: int | None) -> tuple[list[Path], int]:
    """Directories of the ranks of the chosen attempt, otherwise of the last, and the number of attempts."""
    with refusals(root):
        numbered = {number: path for path in root.iterdir() if (number := attempt_number(path)) is not None}
        if not numbered:
            return [], 0
        ranks = [
            path
            for path in numbered[max(numbered) if chosen is None else chosen].iterdir()
            if rank_number(path) is not None
        ]
    return sorted(ranks, key=lambda path: path.name), len(numbered)


def _summarise(directories: Sequence[Path]) -> tuple[list[RankSummary], list[str], list[int]]:
    """Do one task of the executor: summaries, a sentence for each rank without one, and the ranks that the system
    refuses.
    """
    ranks, problems, refused = [], [], []
    for directory in directories:
        try:
            with refusals(directory):
                ranks.append(summarise_rank(directory))
        except UnreadableError as error:
            number = rank_number(directory)
            problems.append(f"{error}; rank {number} is left out")
            refused += [] if number is None else [number]
        except RunDirectoryError as error:
            problems.append(str(error))
    return ranks, problems, refused
