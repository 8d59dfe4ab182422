"""A training that rolled back is, to the bit, an undisturbed one that resumed from that checkpoint with moved data.

Dropout is on, so each rank's generator counts. The bytes of all parameters and moments are compared after every step.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.checkpoint.interrupted import STEPS, Digests
from tests.distributed.checkpoint.rolling_back import RolledBack, moved_on, rolled_back, with_rollbacks
from tests.distributed.checkpoint.test_damage import entries
from tests.distributed.checkpoint.test_resume import small
from tests.distributed.checkpoint.test_resume_scales import training
from tests.distributed.checkpoint.uploading import in_own_folders, with_slow_commits
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.config import CheckpointConfig, Config, DDPConfig, OffloadConfig, ParallelConfig, ScalingConfig

POWERSGD = DDPConfig(compression="powersgd", powersgd_rank=1, powersgd_start=2, bucket_mib=0.01)
LAYOUTS = ("ddp", "zero-1", "powersgd", "fsdp", "in the background", "offload", "pipeline", "tp fp8", "ddp fp16")


def layout(text: str, name: str) -> Config:
    fsdp, dp = ParallelConfig(fsdp=2), ParallelConfig(dp=2)
    configs = {
        "ddp": small(text, dp, ddp=DDPConfig(bucket_mib=0.01)),
        "zero-1": small(text, dp, ddp=DDPConfig(shard_optimizer=True)),
        "powersgd": small(text, dp, ddp=POWERSGD),
        "fsdp": small(text, fsdp),
        "in the background": small(text, fsdp),
        "offload": small(text, fsdp, offload=OffloadConfig(optimizer="cpu")),
        "pipeline": small(text, ParallelConfig(pp=2, microbatches=4)),
        "tp fp8": training(text, "tp", "fp8"),
        "ddp fp16": replace(training(text, "ddp", "fp16"), scaling=ScalingConfig(initial=64.0, growth_interval=2)),
    }
    return with_rollbacks(configs[name], asynchronous=name == "in the background")


def assert_equal(ranks: Sequence[RolledBack], expected: Sequence[Digests], *, steps: range) -> None:
    for rank, (seen, wanted) in enumerate(zip(ranks, expected, strict=True)):
        assert {step: seen.digests[step] for step in steps} == {step: wanted[step] for step in steps}, f"rank {rank}"


def copy_of(directory: Path, step: int, to: Path) -> Path:
    """A folder with only this checkpoint."""
    shutil.copytree(directory / f"step-{step:08d}", to / f"step-{step:08d}")
    return to


@pytest.mark.parametrize("name", swept(LAYOUTS, but={"fsdp"}))
def test_it_equals_a_resumed_training_with_moved_data(two_ranks: Pool, text: str, tmp_path: Path, name: str) -> None:
    """Saved after steps 2 and 4. Batches 4 and 5 are bad: two rollbacks to step 2, which pass over batches 3 to 5.

    A training that resumes from the checkpoint after step 4 continues with batch 8.
    """
    config, directory = layout(text, name), tmp_path / "checkpoints"
    ranks = two_ranks.run(rolled_back, config, directory, {4, 5}, {2, 4})
    for rank in ranks:
        assert rank.rollbacks == [(4, 2, 2, 1), (3, 2, 3, 2)]
    undisturbed = two_ranks.run(moved_on, config, copy_of(directory, 2, tmp_path / "second"), 3)
    assert_equal(ranks, undisturbed, steps=range(2, STEPS + 1))
    again = two_ranks.run(moved_on, config, copy_of(directory, 4, tmp_path / "fourth"), None)
    assert_equal(ranks, again, steps=range(4, STEPS + 1))
    not_moved = two_ranks.run(moved_on, config, copy_of(directory, 2, tmp_path / "not moved"), 0)
    assert all(seen.digests[3] != wanted[3] for seen, wanted in zip(ranks, not_moved, strict=True))


@pytest.mark.parametrize("name", swept(("ddp", "fsdp"), but=set()))
def test_before_the_first_checkpoint_it_goes_back_to_the_begin(
    two_ranks: Pool, text: str, tmp_path: Path, name: str
) -> None:
    config, directory = layout(text, name), tmp_path / "checkpoints"
    ranks = two_ranks.run(rolled_back, config, directory, {1}, set())
    assert [rank.rollbacks for rank in ranks] == [[(1, 0, 1, 1)]] * 2
    undisturbed = two_ranks.run(moved_on, config, copy_of(directory, 0, tmp_path / "begin"), 1)
    assert_equal(ranks, undisturbed, steps=range(STEPS + 1))


@pytest.mark.sweep
def test_four_replicas_keep_their_buckets(four_ranks: Pool, text: str, tmp_path: Path) -> None:
    """The sums of four ranks depend on the order of buckets."""
    config = with_rollbacks(small(text, ParallelConfig(dp=4), ddp=DDPConfig(bucket_mib=0.01)))
    ranks = four_ranks.run(rolled_back, config, tmp_path / "checkpoints", {4}, {2})
    undisturbed = four_ranks.run(moved_on, config, copy_of(tmp_path / "checkpoints", 2, tmp_path / "second"), 2)
    assert_equal(ranks, undisturbed, steps=range(2, STEPS + 1))


@pytest.mark.sweep
def test_a_damaged_checkpoint_is_not_gone_back_to(two_ranks: Pool, text: str, tmp_path: Path) -> None:
    """The checkpoint after step 3 is damaged before batch 5 is bad, so the training goes back to step 2."""
    config, directory = layout(text, "fsdp"), tmp_path / "checkpoints"
    ranks = two_ranks.run(rolled_back, config, directory, {5}, {2, 3}, 3)
    assert [rank.rollbacks for rank in ranks] == [[(5, 2, 3, 1)]] * 2
    assert (directory / "damaged-00000003").is_dir()
    undisturbed = two_ranks.run(moved_on, config, copy_of(directory, 2, tmp_path / "second"), 3)
    assert_equal(ranks, undisturbed, steps=range(2, STEPS + 1))


def test_hosts_without_a_shared_folder_go_back_to_the_checkpoint_that_is_in_upload(
    two_ranks: Pool, text: str, tmp_path: Path
) -> None:
    """Each rank needs the other's file from the bucket. Batch 5 is bad, right after the save of step 4."""
    config = with_rollbacks(small(text, ParallelConfig(dp=2)))
    config = replace(config, checkpoint=CheckpointConfig(keep=9, upload=f"file://{tmp_path}/bucket"))
    ranks = two_ranks.run(with_slow_commits, in_own_folders, rolled_back, config, tmp_path, {5}, {2, 4})
    for rank, seen in enumerate(ranks):
        assert seen.rollbacks == [(5, 4, 1, 1)]
        folders = entries(tmp_path / f"host-{rank}")
        assert [name for name in folders if name.startswith("damaged-")] == []


def test_errors_of_powersgd_do_not_outlive_a_rollback_to_another_layouts_checkpoint(
    two_ranks: Pool, text: str, tmp_path: Path
) -> None:
    """The checkpoint of step 2 has none. Those in memory are NaN after the bad batch, and would spoil later steps."""
    plain = with_rollbacks(small(text, ParallelConfig(dp=2), ddp=DDPConfig(bucket_mib=0.01)))
    compressed = with_rollbacks(small(text, ParallelConfig(dp=2), ddp=POWERSGD))
    two_ranks.run(rolled_back, plain, tmp_path, set(), {2})
    ranks = two_ranks.run(rolled_back, compressed, tmp_path, {5}, set(), None, True)
    assert [rank.rollbacks for rank in ranks] == [[(5, 2, 3, 1)]] * 2
