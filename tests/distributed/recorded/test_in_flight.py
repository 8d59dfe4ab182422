"""Collectives in flight: a limited number is remembered, and the others are counted."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import traincope
from tests.distributed.ranks.pool import Pool
from traincope.record.communication.pending import MAX_PENDING
from traincope.store import read_run


def begin_many(directory: str, number: int) -> None:
    """Rank 1 joins no exchange before rank 0 has begun all of them and has signalled so."""
    signal = torch.zeros(1)
    with traincope.run(directory, budget=None):
        if dist.get_rank() == 1:
            dist.recv(signal, src=0)
        outputs = [torch.empty(2) for _ in range(number)]
        works = [dist.all_to_all_single(output, torch.ones(2), async_op=True) for output in outputs]
        if dist.get_rank() == 0:
            dist.send(signal, dst=1)
        for work in works:
            assert work is not None
            work.wait()


@pytest.mark.parametrize(("number", "forgotten"), [(MAX_PENDING - 1, 0), (MAX_PENDING + 8, 8 + 1)])
def test_forgotten_collectives_are_counted_once_each(
    two_ranks: Pool, tmp_path: Path, number: int, forgotten: int
) -> None:
    """The message is one more in flight. Each exchange is remembered by its work and by its tensor, and counts once."""
    two_ranks.run(begin_many, str(tmp_path / "run"), number)
    first = read_run(tmp_path / "run").ranks[0]
    assert first.info.recorder["collectives_forgotten"] == forgotten


def left_one_out(directory: str) -> str:
    """Rank 1 issues the last of 5 after its run. Returns the name of their group."""
    group, late = dist.new_group(), dist.get_rank()
    with traincope.run(directory, level=0):
        works = [dist.all_reduce(torch.ones(1), async_op=True, group=group) for _ in range(5 - late)]
    works += [dist.all_reduce(torch.ones(1), async_op=True, group=group) for _ in range(late)]
    for work in works:
        assert work is not None
        work.wait()
    return group.group_name


def test_each_rank_notes_at_its_end_how_many_it_issued(two_ranks: Pool, tmp_path: Path) -> None:
    """The ranks also count those of earlier tests, whose groups they have."""
    (name,) = set(two_ranks.run(left_one_out, str(tmp_path / "run")))
    first, second = (rank.info.issued_collectives for rank in read_run(tmp_path / "run").ranks)
    assert (first[name], second[name]) == (5, 4)
