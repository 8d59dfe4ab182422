"""The kernel traces of a run, read when a run is opened: imported ones, and single steps that the recorder traced."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from traincope.errors import DataError, RunDirectoryError
from traincope.ingest.kineto import read_kineto
from traincope.store import RankRecords, RunRecords
from traincope.store.layout import window_step
from traincope.store.traces import Trace, read_trace

MOST_BYTES = 512 << 20
"""Of traces in JSON that are read: some seconds' worth. What is over it can be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Rank -> its traces."""

    ranks: dict[int, tuple[Trace, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """What of them could not be read, one sentence each."""


def read_traces(run: RunRecords) -> Traces:
    """All imported ones; of the recorder's, newest steps first, as many as `MOST_BYTES` allow."""
    found: dict[int, list[Trace]] = defaultdict(list)
    problems = []
    chosen, left_out = _within_budget(run.ranks)
    for rank, path in chosen:
        try:
            trace = read_trace(path) if path.suffix == ".npz" else read_kineto(path, step=window_step(path))
        except (DataError, RunDirectoryError) as error:
            problems.append(str(error))
            continue
        found[rank].append(trace)
        if trace.info.lost is not None:
            problems.append(f"{path.name} of rank {rank} is not whole: {trace.info.lost}")
    if left_out:
        problems.append(
            f"{len(left_out):,} kernel traces are not read, for all are more than {MOST_BYTES >> 20} MiB of JSON; "
            f"see them with traincope import, the first is {left_out[0]}"
        )
    return Traces(ranks={rank: tuple(found[rank]) for rank in sorted(found)}, problems=tuple(problems))


def _within_budget(ranks: Iterable[RankRecords]) -> tuple[list[tuple[int, Path]], list[Path]]:
    """The (rank, file) that are read, in order, and those that are not."""
    files = [(rank.rank, path) for rank in ranks for path in rank.traces]
    spent, kept, left_out = 0, [], []
    for rank, path in sorted(files, key=lambda file: (-(window_step(file[1]) or 0), file)):
        spent += path.stat().st_size if path.suffix == ".json" else 0
        if spent <= MOST_BYTES:
            kept.append((rank, path))
        else:
            left_out.append(path)
    return sorted(kept), sorted(left_out)
