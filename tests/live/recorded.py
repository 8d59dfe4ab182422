"""Real runs without torch: ranks of the environment, spans for work."""

from pathlib import Path

import pytest

import traincope
from traincope.record import writer
from traincope.store import RunRecords, read_run
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
    """One rank after the other, all of one attempt; `capacity`: records of a segment."""
    patch.setattr(writer, "CAPACITY", capacity)
    patch.setenv("WORLD_SIZE", str(ranks))
    for rank in range(ranks):
        patch.setenv("RANK", str(rank))
        with traincope.run(out, throttle=None) as run:
            for _ in range(steps):
                for _ in range(spans):
                    with traincope.span("work"):
                        pass
                run.step()


def rank_of(out: Path, rank: int = 0) -> Path:
    return rank_directory(out, attempt=0, rank=rank)


def all_records(run: RunRecords) -> list[bytes]:
    """Of each rank every record, in order."""
    return [rank.thread(thread).tobytes() for rank in run.ranks for thread in rank.threads]


def reread(out: Path) -> list[bytes]:
    return all_records(read_run(out))
