"""Real runs without torch: ranks from the environment, spans as work."""

from pathlib import Path
from typing import Any

import pytest

import traincope
from traincope.record.segments import writer
from traincope.store import RunRecords, read_run
from traincope.store.job.process import Process
from traincope.store.layout import rank_directory


def record(
    out: Path,
    patch: pytest.MonkeyPatch,
    *,
    ranks: int = 1,
    steps: int = 4,
    spans: int = 3,
    capacity: int = writer.CAPACITY,
) -> None:
    """Record all ranks of one attempt, one after the other. `capacity`: events per segment."""
    patch.setattr(writer, "CAPACITY", capacity)
    patch.setenv("WORLD_SIZE", str(ranks))
    for rank in range(ranks):
        patch.setenv("RANK", str(rank))
        with traincope.run(out, budget=None) as run:
            for _ in range(steps):
                for _ in range(spans):
                    with traincope.span("work"):
                        pass
                run.step()


def rank_of(out: Path, rank: int = 0) -> Path:
    return rank_directory(out, attempt=0, rank=rank)


def all_records(run: RunRecords) -> list[bytes]:
    """All events of each rank, in order."""
    return [rank.thread(thread).tobytes() for rank in run.ranks for thread in rank.threads]


def reread(out: Path) -> list[bytes]:
    return all_records(read_run(out))


def dead_process(**changes: Any) -> dict[str, Any]:
    """A process of this host that does not run, as in `rank.json`."""
    this = Process.this()
    assert this is not None
    return this.as_json() | {"pid": 2**22 + 1} | changes
