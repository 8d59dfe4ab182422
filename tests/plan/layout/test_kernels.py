"""Rates of kernels, computed by hand."""

from dataclasses import replace

import pytest

from traincope.errors import UsageError
from traincope.plan.layout.families import HOPPER
from traincope.plan.layout.kernels import Kernels, uniform

KERNELS = Kernels(product=0.8, attention=0.6, processors=100)


def test_a_wave_that_is_not_full_takes_as_long_as_one_that_is() -> None:
    """Tiles of 256 x 128: 10 x 10 fill 100 processors once; 10 x 11 need two waves for 1.1."""
    assert KERNELS.product_share(2560, 64, 1280) == pytest.approx(0.8)
    # Smaller tiles at 0.9 of the rate fill 2.2 of 3 waves, those at 0.7 4.4 of 5.
    assert KERNELS.product_share(2560, 64, 1408) == pytest.approx(0.8 * max(1.1 / 2, 0.9 * 2.2 / 3, 0.7 * 4.4 / 5))


def test_a_tile_beyond_the_edge_computes_nothing_of_use() -> None:
    """99 x 128 of elements in each tile of 256 x 128 at best: the smallest tiles hold 99 of 128 rows."""
    share = KERNELS.product_share(99, 64, 12_800)
    assert share == pytest.approx(0.8 * max(99 / 256, 0.9 * 99 / 128, 0.7 * 99 / 128 * 2 / 2))


def test_a_deep_product_of_few_tiles_is_split() -> None:
    """One tile on 100 processors; split 100 times along 100 x 2,048."""
    assert KERNELS.product_share(256, 64, 128) == pytest.approx(0.8 * max(0.01, 0.9 * 0.02, 0.7 * 0.04))
    assert KERNELS.product_share(256, 100 * 2048, 128) == pytest.approx(0.8)


def test_half_of_the_rate_at_the_depth() -> None:
    kernels = replace(KERNELS, processors=None, depth=128)
    assert kernels.product_share(1000, 128, 1000) == pytest.approx(0.4)
    assert kernels.product_share(1000, 128 * 3, 1000) == pytest.approx(0.6)


def test_attention_is_slower_with_narrow_heads_and_short_sequences() -> None:
    kernels = replace(KERNELS, attention_head=32, attention_tokens=1024, triton=0.5)
    assert kernels.attention_share(1024, 96) == pytest.approx(0.6 * 96 / 128 / 2)
    assert kernels.attention_share(3072, 32) == pytest.approx(0.6 / 2 * 3 / 4)
    assert kernels.attention_share(3072, 32, triton=True) == pytest.approx(0.6 / 2 * 3 / 4 / 2)


def test_attention_in_a_fixed_order_has_rates_of_its_own() -> None:
    """Without a rate of its own its forward is as fast. FlashAttention 2: 2.5 times the FLOPs at 166.0 / 306.2."""
    kernels = replace(KERNELS, attention_head=32, ordered=0.3)
    assert kernels.attention_share(1024, 96, ordered=True) == pytest.approx(0.3 * 96 / 128)
    assert KERNELS.attention_share(1024, 96, ordered=True) == pytest.approx(0.6)
    assert kernels.backward_share(ordered=True) == pytest.approx(2.5 * 306.2 / 166.0)
    assert kernels.backward_share() == kernels.attention_backward


def test_flash_attention_2_reaches_its_published_rate_on_an_h100() -> None:
    """306.2 TFLOP/s of 989.4 in forward, with 8,192 tokens and heads of 128."""
    assert HOPPER.kernels.attention_share(8192, 128, ordered=True) == pytest.approx(306.2 / 989.4, rel=0.02)


def test_uniform_kernels_reach_one_share_at_any_size() -> None:
    kernels = uniform(0.5)
    assert kernels.product_share(7, 11, 13) == kernels.attention_share(17, 19) == 0.5


def test_attention_follows_a_measured_rate_of_products() -> None:
    """Not beyond its peak."""
    assert KERNELS.with_product(0.4).attention == pytest.approx(0.3)
    assert replace(KERNELS, product=0.4).with_product(0.8).attention == 1.0


def test_an_impossible_share_is_refused() -> None:
    with pytest.raises(UsageError, match=r"product is 1\.5; it must lie in \(0, 1\]"):
        uniform(1.5)
