"""A resumed training is the uninterrupted one: the bytes of all parameters and moments are equal after every step.

Dropout is on, so each rank's generator counts. Buckets are small, so DDP's sums over four ranks depend on their order.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.checkpoint.interrupted import (
    SAVED,
    STEPS,
    Digests,
    resumed,
    resumed_in_first_buckets,
    resumed_with_new_generators,
    uninterrupted,
)
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.config import CheckpointConfig, Config, DDPConfig, ParallelConfig
from traincope.engine.config.load import load_config

EXAMPLES = Path(__file__).parents[3] / "examples"
AFTER = range(SAVED, STEPS + 1)
SMALL = ("model.hidden=32", "model.ffn=64", "model.sequence=32", "model.heads=4", "model.kv_heads=4", "train.batch=16")
WITH_DROPOUT = ("model.dropout=0.1", "train.precision='fp32'")


def small(text: str, parallel: ParallelConfig, **tables: object) -> Config:
    config = small_config(text, parallel)
    return replace(config, model=replace(config.model, dropout=0.1), **tables)  # type: ignore[arg-type]


def small_buckets(text: str) -> Config:
    return small(text, ParallelConfig(dp=4), ddp=DDPConfig(bucket_mib=0.01))


def assert_same(ranks: Sequence[Digests], expected: Sequence[Digests]) -> None:
    for rank, (digests, wanted) in enumerate(zip(ranks, expected, strict=True)):
        assert digests == {step: wanted[step] for step in AFTER}, f"rank {rank}"


def test_ddp_continues_to_the_bit_and_only_with_its_buckets_and_generators(
    four_ranks: Pool, text: str, tmp_path: Path
) -> None:
    config = small_buckets(text)
    expected = four_ranks.run(uninterrupted, config, tmp_path)
    assert_same(four_ranks.run(resumed, config, tmp_path), expected)
    for broken in (resumed_in_first_buckets, resumed_with_new_generators):
        for digests, wanted in zip(four_ranks.run(broken, config, tmp_path), expected, strict=True):
            assert digests[SAVED] == wanted[SAVED]
            assert all(digests[step] != wanted[step] for step in AFTER[1:])


def test_fsdp_that_saves_in_the_background_continues_to_the_bit(four_ranks: Pool, text: str, tmp_path: Path) -> None:
    """The training goes on while the checkpoint is written, and the written state is that of the saved step."""
    config = small(text, ParallelConfig(fsdp=4), checkpoint=CheckpointConfig(asynchronous=True))
    expected = four_ranks.run(uninterrupted, config, tmp_path)
    assert_same(four_ranks.run(resumed, config, tmp_path), expected)


def test_errors_that_powersgd_keeps_continue_to_the_bit(four_ranks: Pool, text: str, tmp_path: Path) -> None:
    compressed = DDPConfig(compression="powersgd", powersgd_rank=1, powersgd_start=2, bucket_mib=0.01)
    config = small(text, ParallelConfig(dp=4), ddp=compressed)
    expected = four_ranks.run(uninterrupted, config, tmp_path)
    assert_same(four_ranks.run(resumed, config, tmp_path), expected)


@pytest.mark.parametrize("example", swept(sorted(path.stem for path in EXAMPLES.glob("*.toml")), but={"zero1"}))
def test_every_example_continues_to_the_bit(four_ranks: Pool, text: str, tmp_path: Path, example: str) -> None:
    overrides = (*SMALL, *WITH_DROPOUT, f"data.path={text!r}")
    config = load_config(EXAMPLES / f"{example}.toml", overrides=overrides)
    ranks = config.parallel.world_size
    pool = four_ranks if ranks == four_ranks.size else Pool(ranks)
    try:
        expected = pool.run(uninterrupted, config, tmp_path)
        assert_same(pool.run(resumed, config, tmp_path), expected)
    finally:
        if pool is not four_ranks:
            pool.stop()
