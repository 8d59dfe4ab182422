"""Peak of whole steps: one real training in this process, bytes by hand, and layouts that are refused.

All layouts, on real ranks: `make truth-memory`.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from traincope.engine.config import Config, DataConfig, ModelConfig, ParallelConfig, TrainConfig
from traincope.engine.model.allocation import allocated_model
from traincope.engine.trainer import Trainer
from traincope.errors import ConfigError, UsageError
from traincope.plan.allocator.modules import Model
from traincope.plan.allocator.rank import rank_peaks
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer

SHAPE = Transformer(layers=2, hidden=8, heads=2, ffn=12, vocabulary=10, sequence=4, gated_mlp=True, untied=True)
PARAMETERS = 2 * (4 * 8 * 8 + 3 * 8 * 12 + 2 * 8) + 2 * 8 * 10 + 8
"""Two blocks of four square matrices, three of the feed-forward and two norms; embedding, output and the last norm."""


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_real_step_takes_the_computed_bytes(recompute: str, tmp_path: Path) -> None:
    """Within 1 %: rotary tables and single numbers are left out."""
    text = tmp_path / "text.txt"
    text.write_text("One sentence after the other. " * 400)
    config = Config(
        model=ModelConfig(layers=3, hidden=64, heads=4, kv_heads=2, ffn=176, sequence=64),
        data=DataConfig(path=str(text), held_out=0.2),
        train=TrainConfig(steps=3, batch=4, recompute=recompute),  # type: ignore[arg-type]
    )
    (computed,) = rank_peaks(allocated_model(config))
    measured = measured_peak(config, held=computed.held_bytes)
    assert computed.peak_bytes == pytest.approx(measured, rel=0.01)


def measured_peak(config: Config, *, held: int) -> int:
    """Peak of the third step by torch's profiler, which sees all that this thread takes and frees."""
    steps = Trainer(config, device=torch.device("cpu")).steps()
    for _ in range(2):
        next(steps)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        next(steps)
    largest = now = held
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            largest = max(largest, now)
    return largest


def test_a_rank_holds_parameters_their_states_and_what_its_layout_adds() -> None:
    one, replicas, zero1, shards = (
        rank_peaks(Model(shape=SHAPE, layout=layout))[0].held_bytes
        for layout in (Layout(), Layout(dp=2), Layout(dp=2, zero=1), Layout(dp=2, zero=3))
    )
    assert one == 3 * 4 * PARAMETERS
    assert replicas == one + 4 * PARAMETERS  # DDP's buckets
    assert shards == one // 2
    assert replicas - 4 * PARAMETERS <= zero1 < replicas


def test_stages_hold_a_tensor_for_each_message_that_they_receive() -> None:
    """Two microbatches of 4 tokens x 8 numbers: a gradient each on the first stage, an activation on the second."""
    first, second = rank_peaks(Model(shape=SHAPE, layout=Layout(pp=2, microbatches=2)))
    block, end = 4 * 8 * 8 + 3 * 8 * 12 + 2 * 8, 8 * 10
    assert first.held_bytes == 3 * 4 * (block + end) + 2 * 4 * 4 * 8
    assert second.held_bytes == 3 * 4 * (block + end + 8) + 2 * 4 * 4 * 8


def test_recomputation_and_more_shards_lower_the_peak_and_more_sequences_raise_it() -> None:
    big = replace(SHAPE, layers=8, hidden=64, ffn=128, sequence=64)
    peaks = [
        rank_peaks(Model(shape=big, layout=layout, recompute=recompute))[0].peak_bytes
        for recompute in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
        for layout in (Layout(dp=4, zero=3), Layout(dp=2, zero=3), Layout(), Layout(micro_batch=2))
    ]
    for one in (peaks[:4], peaks[4:8], peaks[8:]):
        assert one == sorted(one)
    assert all(none > selective > full for none, selective, full in zip(peaks[:4], peaks[4:8], peaks[8:], strict=True))


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (Layout(pp=2, microbatches=2, schedule="zb-1p"), "zb-1p splits backward, and its peak has no formula here"),
        (Layout(pp=2, dp=2), "pp = 2 with 2 data ranks has no formula for its peak"),
        (Layout(tp=3), "tp is 3; it must divide the 2 heads"),
    ],
)
def test_a_layout_without_a_formula_is_refused(layout: Layout, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        rank_peaks(Model(shape=SHAPE, layout=layout))
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (Config(train=TrainConfig(precision="bf16")), "train.precision = 'bf16' has no formula"),
        (Config(train=TrainConfig(recompute="pointwise")), "train.recompute = 'pointwise' has no formula"),
        (
            Config(parallel=ParallelConfig(pp=2, microbatches=2), train=TrainConfig(accumulation=2), data=DataConfig()),
            "train.accumulation = 2 has no formula",
        ),
    ],
)
def test_a_setting_without_a_formula_is_named(config: Config, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        allocated_model(config)
    assert str(refused.value).startswith(sentence)
