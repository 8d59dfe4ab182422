"""Overflows that all ranks skip together, and trainings in fp8 in every layout against one process and against bf16."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.distributed.layouts import Outcome, small_config, train
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.config import Config, ExpertsConfig, ParallelConfig, ScalingConfig
from traincope.engine.ranks.local import local_part
from traincope.engine.trainer import Trainer

INJECTED = (2, 5)
"""Steps in which one rank's gradient has an infinity."""
LAYOUTS = {
    "ddp": ParallelConfig(dp=2),
    "fsdp": ParallelConfig(fsdp=2),
    "pipeline": ParallelConfig(pp=2, microbatches=4),
    "tp": ParallelConfig(tp=2),
    "zb-v": ParallelConfig(pp=2, microbatches=4, schedule="zb-v"),
}
Seen = list[tuple[bool, float | None, bool]]
"""Each step: skipped, scale of the loss, and whether this rank's parameters changed."""


def overflow_on_the_last_rank(config: Config) -> Seen:
    trainer = Trainer(config, device=torch.device("cpu"))
    rank, last = dist.get_rank(), dist.get_world_size() - 1

    def inject(gradient: Tensor) -> Tensor:
        broken = rank == last and trainer.done + 1 in INJECTED
        return gradient * math.inf if broken else gradient

    def watch(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        output.register_hook(inject)

    for module in trainer.modules.values():
        for name, layer in module.named_modules():
            if name.endswith("attention.out"):
                layer.register_forward_hook(watch)
    seen: Seen = []
    before = _copies(trainer)
    for result in trainer.steps():
        after = _copies(trainer)
        changed = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        seen.append((result.overflowed, result.loss_scale, changed))
        before = after
    return seen


def _copies(trainer: Trainer) -> list[Tensor]:
    return [local_part(parameter).detach().clone() for parameter in trainer.parameters.values()]


@pytest.mark.parametrize("layout", swept(LAYOUTS, but={"pipeline"}))
def test_an_overflow_on_one_rank_is_skipped_by_all(two_ranks: Pool, text: str, layout: str) -> None:
    """From 64: step 2 halves it, steps 3 and 4 are two good steps and double it, step 5 halves it."""
    config = small_config(text, LAYOUTS[layout], precision="fp16", steps=6)
    config = replace(config, scaling=ScalingConfig(initial=64.0, growth_interval=2))
    expected = list(
        zip(
            (False, True, False, False, True, False),
            (64.0, 64.0, 32.0, 32.0, 64.0, 32.0),
            (True, False, True, True, False, True),
            strict=True,
        )
    )
    assert two_ranks.run(overflow_on_the_last_rank, config) == [expected, expected]


@pytest.fixture(scope="module")
def alone_in_fp8(text: str) -> Outcome:
    return train(small_config(text, ParallelConfig(), precision="fp8"))


@pytest.mark.parametrize("layout", swept([*LAYOUTS, "cp"], but={"zb-v"}))
def test_every_layout_trains_in_fp8_as_one_process(
    two_ranks: Pool, text: str, alone_in_fp8: Outcome, layout: str
) -> None:
    """Scales of the first step, and FSDP's residual in bf16, differ; losses agree as in bf16 x 3."""
    parallel = ParallelConfig(cp=2) if layout == "cp" else LAYOUTS[layout]
    for outcome in two_ranks.run(train, small_config(text, parallel, precision="fp8")):
        np.testing.assert_allclose(outcome.losses, alone_in_fp8.losses, atol=3e-2)


@pytest.fixture(scope="module")
def alone_in_blocks(text: str) -> Outcome:
    return train(small_config(text, ParallelConfig(), precision="fp8_block"))


@pytest.mark.sweep
@pytest.mark.parametrize("layout", [*LAYOUTS, "cp"])
def test_every_layout_trains_in_blocks_as_one_process(
    two_ranks: Pool, text: str, alone_in_blocks: Outcome, layout: str
) -> None:
    """Blocks of tokens, and of matrices that tensor parallelism splits, differ from those of one process."""
    parallel = ParallelConfig(cp=2) if layout == "cp" else LAYOUTS[layout]
    for outcome in two_ranks.run(train, small_config(text, parallel, precision="fp8_block")):
        np.testing.assert_allclose(outcome.losses, alone_in_blocks.losses, atol=3e-2)


EXPERTS = ExpertsConfig(number=4, top_k=2, ffn=48, balance=0.1)
SPREAD = {
    "fsdp": ParallelConfig(fsdp=2),
    "ep": ParallelConfig(fsdp=2, ep=2),
    "tp": ParallelConfig(tp=2),
    "zb-v": ParallelConfig(pp=2, microbatches=4, schedule="zb-v"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("layout", SPREAD)
@pytest.mark.parametrize("precision", ["fp16", "fp8", "fp8_block"])
def test_experts_train_in_every_format_as_one_process_and_near_fp32(
    two_ranks: Pool, text: str, precision: str, layout: str
) -> None:
    """A router's choice between nearly equal experts can change with the rounding, which moves the loss a little."""

    def config(parallel: ParallelConfig, precision: str) -> Config:
        return replace(small_config(text, ParallelConfig(), precision=precision), experts=EXPERTS, parallel=parallel)

    alone, fp32 = (train(config(ParallelConfig(), each)) for each in (precision, "fp32"))
    np.testing.assert_allclose(alone.losses, fp32.losses, atol=5e-2)
    for outcome in two_ranks.run(train, config(SPREAD[layout], precision)):
        np.testing.assert_allclose(outcome.losses, alone.losses, atol=5e-2)


@pytest.mark.parametrize("scale", [2.0**6, 2.0**13])
def test_the_scale_of_the_loss_scales_the_balance_loss_too(text: str, scale: float) -> None:
    """A balance loss with a weight of 20 dominates the gradient of the first step, which is fp32's at any scale."""
    norms = []
    for precision in ("fp32", "fp16"):
        config = small_config(text, ParallelConfig(), precision=precision, steps=1)
        scaling = ScalingConfig(initial=scale) if precision == "fp16" else ScalingConfig()
        config = replace(config, experts=replace(EXPERTS, balance=20.0), scaling=scaling)
        norms.append(train(config).grad_norms[0])
    without = train(replace(config, experts=replace(EXPERTS, balance=0.0))).grad_norms[0]
    assert norms[0] > 1.2 * without
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)


@pytest.mark.parametrize("precision", ["fp8", "fp8_block"])
def test_a_run_in_fp8_stays_near_bf16(request: pytest.FixtureRequest, text: str, precision: str) -> None:
    """AdamW moves a number by at most lr x (1 - b1) / sqrt(1 - b2) a step (Kingma & Ba 2015, section 2.1), plus decay.

    So two runs of five steps from the same weights are apart by at most twice the sum of the learning rates (warm-up:
    half of one, then four) times the larger of that factor and 1.
    """
    fp8: Outcome = request.getfixturevalue({"fp8": "alone_in_fp8", "fp8_block": "alone_in_blocks"}[precision])
    bf16 = train(small_config(text, ParallelConfig(), precision="bf16"))
    factor = max(1.0, (1 - 0.9) / math.sqrt(1 - 0.95))
    bound = 2 * 4.5 * 3e-3 * factor * 1.1
    for name, parameter in fp8.parameters.items():
        assert np.abs(parameter - bf16.parameters[name]).max() <= bound
    np.testing.assert_allclose(fp8.losses, bf16.losses, atol=2e-2)
    assert fp8.losses != bf16.losses


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["full", "selective", "pointwise"])
def test_recomputation_in_fp8_changes_no_bit(text: str, alone_in_fp8: Outcome, mode: str) -> None:
    assert train(small_config(text, ParallelConfig(), precision="fp8", recompute=mode)).losses == alone_in_fp8.losses


@pytest.mark.sweep
@pytest.mark.parametrize(("reduce", "precision"), [("bf16", "fp32"), ("fp16", "fp16")])
def test_gradients_that_are_summed_in_16_bits_train_nearly_alike(
    two_ranks: Pool, text: str, reduce: str, precision: str
) -> None:
    config = small_config(text, ParallelConfig(fsdp=2), precision=precision)
    narrow = replace(config, fsdp=replace(config.fsdp, reduce=reduce))  # type: ignore[arg-type]
    (wide, _), (summed, _) = (two_ranks.run(train, each) for each in (config, narrow))
    assert summed.losses != wide.losses
    np.testing.assert_allclose(summed.losses, wide.losses, atol=1e-2)
