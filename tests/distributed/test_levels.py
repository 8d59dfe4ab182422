"""The level of a running job, which its ranks see changed in different steps: what they do together stays matched."""

from pathlib import Path

import torch
import torch.distributed as dist

import traincope
from tests.distributed.pool import Pool
from traincope.events import Kind
from traincope.record import probes
from traincope.timeline import match_instances

LONG_NS = 1 << 60


def raised_in(seen: tuple[int, int], steps: int, directory: str) -> None:
    """A barrier and an all-reduce a step; each rank looks for another level at the beginning of its own step alone."""
    rank, usual = dist.get_rank(), probes.LOOK_INTERVAL_NS
    wish = Path(directory, "level")
    try:
        probes.LOOK_INTERVAL_NS = LONG_NS
        with traincope.run(directory, level=0, throttle=None) as run:
            for step in range(steps):
                if step == min(seen):
                    wish.write_text("1")
                    dist.barrier()
                probes.LOOK_INTERVAL_NS = 0 if step == seen[rank] else LONG_NS
                run.step()
                dist.barrier()
                dist.all_reduce(torch.ones(2))
    finally:
        probes.LOOK_INTERVAL_NS = usual


def matched(directory: Path) -> list[tuple[int, bool, set[str], set[int]]]:
    """Of each instance how many parts it has, whether these are all, their operations, and their steps."""
    found = match_instances(traincope.open_run(directory))
    each = [found.number == number for number in range(len(found))]
    return sorted(
        (
            (
                int(parts.sum()),
                bool(found.complete[number]),
                set(found.operation[parts].tolist()),
                set(found.parts.step[parts].tolist()),
            )
            for number, parts in enumerate(each)
        ),
        key=lambda one: (min(one[3]), sorted(one[2])),
    )


def test_ranks_that_see_it_steps_apart_begin_to_count_at_the_same_one(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(raised_in, (3, 6), 35, str(tmp_path / "run"))
    assert matched(tmp_path / "run") == [
        (2, True, {operation}, {step}) for step in (32, 33, 34) for operation in ("all_reduce", "barrier")
    ]


def test_ranks_between_whose_steps_such_a_one_lies_match_from_the_next_on_and_never_falsely(
    two_ranks: Pool, tmp_path: Path
) -> None:
    """Rank 0 begins at 32 and rank 1, which saw it at 33, at 64, as rank 0 does again."""
    two_ranks.run(raised_in, (30, 33), 66, str(tmp_path / "run"))
    assert matched(tmp_path / "run") == [
        (1 + (step >= 64), step >= 64, {operation}, {step})
        for step in range(32, 66)
        for operation in ("all_reduce", "barrier")
    ]


def lowered_and_raised(directory: str) -> None:
    usual, probes.LOOK_INTERVAL_NS = probes.LOOK_INTERVAL_NS, 0
    try:
        with traincope.run(directory, throttle=None) as run:
            for level in (1, 0, 1):
                dist.barrier()
                Path(directory, "level").write_text(str(level))
                dist.barrier()
                for _ in range(33):
                    run.step()
                    dist.all_reduce(torch.ones(2))
    finally:
        probes.LOOK_INTERVAL_NS = usual


def test_no_number_of_a_group_is_used_twice_when_a_level_is_raised_again(two_ranks: Pool, tmp_path: Path) -> None:
    """33 steps at level 1, 33 at level 0, and then some from step 96 on."""
    two_ranks.run(lowered_and_raised, str(tmp_path / "run"))
    for rank in traincope.open_run(tmp_path / "run").ranks:
        records = rank.of_kind(Kind.COLLECTIVE)
        keys = [(rank.groups[int(record["group"])].key, int(record["sequence"])) for record in records]
        assert len(keys) == len(set(keys))
        names = [key for key, _ in keys]
        assert sorted(set(names)) == [names[0], f"{names[0]}@96"]
        assert [names.count(names[0]), names.count(f"{names[0]}@96")] == [37, 3]
