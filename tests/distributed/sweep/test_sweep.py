"""The sweep of `make test-engine`: its table, its verdict, and one real layout."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.ranks.pool import Pool
from tests.distributed.sweep.layouts import EIGHT_RANKS, FOUR_RANKS, LAYOUTS, SIXTEEN_RANKS
from tests.distributed.sweep.sweep import STEPS, Verdict, configuration, judge, train, write_text
from tests.distributed.sweep.traffic import Sizes, traffic
from traincope.engine.config import ParallelConfig

GOOD = Verdict(
    error=0.0, weight_error=0.0, recorded={("tp", "send"): (2, 8)}, expected={("tp", "send"): (2, 8)}, disordered=()
)


def test_each_layout_of_the_table_has_the_ranks_of_its_group() -> None:
    sizes = {name: configuration("text", tables).parallel.world_size for name, tables in LAYOUTS.items()}
    assert sizes == dict.fromkeys(FOUR_RANKS, 4) | dict.fromkeys(EIGHT_RANKS, 8) | dict.fromkeys(SIXTEEN_RANKS, 16)
    assert len(FOUR_RANKS) + len(EIGHT_RANKS) + len(SIXTEEN_RANKS) == len(LAYOUTS) >= 16


def test_the_units_of_unequal_stages_agree_with_a_hand_calculation() -> None:
    """Stages of 2, 2, 2 and 1 layers, one unit per layer.

    The first stage's embedding is one unit more. The last stage is one unit: its only layer, norm and output.
    """
    config = configuration("text", EIGHT_RANKS["pp 4 1f1b x fsdp 2 of 7 layers"])
    assert [len(layers) for layers in config.stage_layers] == [2, 2, 2, 1]
    assert Sizes(config=config).units == 3 + 2 + 2 + 1


def test_any_difference_fails_the_verdict() -> None:
    assert GOOD.passed
    assert not replace(GOOD, error=1e-5).passed
    assert not replace(GOOD, weight_error=1e-4).passed
    assert not replace(GOOD, recorded={("cp", "send"): (2, 8)}).passed
    assert not replace(GOOD, recorded={("tp", "send"): (2, 4)}).passed
    assert not replace(GOOD, disordered=("rank 1",)).passed


def test_traffic_of_a_pipeline_of_rings_agrees_with_a_hand_calculation() -> None:
    """pp 2 zb-v x cp 2: 4 stages of 2 layers in a V; stages 0 and 3 on one rank, 1 and 2 on the other.

    Of the 6 inputs from other stages 4 come from the other rank, for each of 4 microbatches of 4 sequences, 8 tokens of
    32 channels: 16 messages of 4 KiB per step, on each of 2 columns. Keys and values of 4 sequences, 8 tokens and 4
    heads of 4 channels are 4 KiB, and make 4 hops in each of 8 layers, for 4 microbatches and 2 columns.
    """
    expected = traffic(configuration("text", FOUR_RANKS["pp 2 zb-v x cp 2"]), steps=1)
    assert expected["pp", "send"] == expected["pp", "recv"] == (2 * 16, 2 * 16 * 4096)
    assert expected["cp", "send"] == expected["cp", "recv"] == (4 * 8 * 4 * 2, 4 * 8 * 4 * 2 * 4096)
    assert expected["world", "all_reduce"] == (4, 16)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool of its own: torch's caches keep meshes of other trainings, which would name the world's group."""
    pool = Pool(4)
    yield pool
    pool.stop()


@pytest.mark.sweep
def test_a_layout_trains_as_one_process_and_is_recorded_correctly(pool: Pool, tmp_path: Path) -> None:
    text = write_text(tmp_path)
    config = configuration(text, FOUR_RANKS["pp 2 zb-v x cp 2"])
    alone = train(replace(config, parallel=ParallelConfig()))
    assert len(alone.losses) == STEPS
    verdict = judge(pool, config, alone, tmp_path / "run")
    assert (verdict.recorded, verdict.disordered) == (verdict.expected, ())
    assert verdict.passed, verdict


@pytest.mark.sweep
def test_the_sweep_detects_another_training(pool: Pool, tmp_path: Path) -> None:
    """A training with another seed."""
    text = write_text(tmp_path)
    config = configuration(text, FOUR_RANKS["pp 2 gpipe x ddp 2"])
    alone = train(replace(config, parallel=ParallelConfig()))
    other = replace(config, train=replace(config.train, seed=1))
    verdict = judge(pool, other, alone, tmp_path / "run")
    assert verdict.error > 1e-3
    assert verdict.weight_error > 1e-3
