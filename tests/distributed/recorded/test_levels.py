"""A changed level of a running job: ranks notice it in different steps, and their collectives stay matched."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import traincope
from tests.distributed.ranks.pool import Pool
from traincope.events import BLOCK_STEPS, Kind
from traincope.record.session import recorder
from traincope.timeline import match_instances

LONG_NS = 1 << 60


def raised_in(look_steps: tuple[int, int], steps: int, directory: str) -> None:
    """One barrier and one all-reduce per step. Each rank looks for a new level only at the start of its own step."""
    rank, usual = dist.get_rank(), recorder.CLOCK_INTERVAL_NS
    wish = Path(directory, "level")
    try:
        recorder.CLOCK_INTERVAL_NS = LONG_NS
        with traincope.run(directory, level=0, budget=None) as run:
            for step in range(steps):
                if step == min(look_steps):
                    wish.write_text("1")
                    dist.barrier()
                recorder.CLOCK_INTERVAL_NS = 0 if step == look_steps[rank] else LONG_NS
                run.step()
                dist.barrier()
                dist.all_reduce(torch.ones(2))
    finally:
        recorder.CLOCK_INTERVAL_NS = usual


def matched(directory: Path) -> list[tuple[int, bool, set[str], set[int]]]:
    """For each instance: number of parts, whether these are all, operations, and steps."""
    instances = match_instances(traincope.open_run(directory))
    each = [instances.number == number for number in range(len(instances))]
    return sorted(
        (
            (
                int(parts.sum()),
                bool(instances.complete[number]),
                set(instances.operation[parts].tolist()),
                set(instances.parts.step[parts].tolist()),
            )
            for number, parts in enumerate(each)
        ),
        key=lambda row: (min(row[3]), sorted(row[2])),
    )


def test_ranks_that_notice_a_level_in_different_steps_start_at_the_same_window(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(raised_in, (3, 6), 11, str(tmp_path / "run"))
    assert matched(tmp_path / "run") == [
        (2, True, {operation}, {step}) for step in range(BLOCK_STEPS, 11) for operation in ("all_reduce", "barrier")
    ]


def test_ranks_on_both_sides_of_a_windows_begin_match_from_the_next_window_on(two_ranks: Pool, tmp_path: Path) -> None:
    """Rank 0 begins at 7. Rank 1 notices at 9 and begins at 14."""
    two_ranks.run(raised_in, (6, 9), 18, str(tmp_path / "run"))
    assert matched(tmp_path / "run") == [
        (1 + (step >= 14), step >= 14, {operation}, {step})
        for step in range(7, 18)
        for operation in ("all_reduce", "barrier")
    ]


def lowered_and_raised(directory: str) -> None:
    usual, recorder.CLOCK_INTERVAL_NS = recorder.CLOCK_INTERVAL_NS, 0
    try:
        with traincope.run(directory, budget=None) as run:
            for level in (1, 0, 1):
                dist.barrier()
                Path(directory, "level").write_text(str(level))
                dist.barrier()
                for _ in range(33):
                    run.step()
                    dist.all_reduce(torch.ones(2))
    finally:
        recorder.CLOCK_INTERVAL_NS = usual


def test_counts_begin_anew_in_every_window(two_ranks: Pool, tmp_path: Path) -> None:
    """33 steps at level 1, 33 at level 0, and then from step 70 on, the begin of a window."""
    two_ranks.run(lowered_and_raised, str(tmp_path / "run"))
    for rank in traincope.open_run(tmp_path / "run").ranks:
        records = rank.of_kind(Kind.COLLECTIVE)
        counted = records[np.isin(records["name"], [rank.names.index("all_reduce")])]
        steps = [*range(33), *range(70, 99)]
        assert counted["step"].tolist() == steps
        assert counted["window"].tolist() == [step // BLOCK_STEPS * BLOCK_STEPS for step in steps]
        keys = list(zip(records["window"].tolist(), records["sequence"].tolist(), strict=True))
        assert len(keys) == len(set(keys))
        assert {rank.groups[int(record["group"])].key for record in records} == {rank.groups[0].key}
