"""Recomputation: FLOPs that backward repeats, in the amount that the formulas give, whatever repeats them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from tests.record.compute.test_flops import BATCH, CONFIG, SHAPE, by_phase, counted, gpt_step
from traincope.engine.model.attention import Core
from traincope.engine.model.model import GPT
from traincope.engine.parallel.recompute import apply_recompute
from traincope.events import Phase
from traincope.plan.model.flops import Recompute, attention_forward, blocks_forward, step_flops

BLOCKS = blocks_forward(SHAPE, batch=BATCH)
ATTENTION = attention_forward(SHAPE, batch=BATCH)
LAST = 2 * BATCH * CONFIG.sequence * CONFIG.layers * CONFIG.ffn * CONFIG.hidden
"""The last product of every block."""


@pytest.mark.parametrize(
    ("mode", "early_stop", "again"),
    [
        pytest.param("none", True, 0, id="none"),
        pytest.param("full", False, BLOCKS + ATTENTION, id="full"),
        pytest.param("full", True, BLOCKS + ATTENTION - LAST, id="full with an early stop"),
        pytest.param("selective", True, ATTENTION, id="selective, attention"),
        pytest.param("pointwise", True, 0, id="pointwise, which keeps every product"),
    ],
)
def test_the_engine_recomputes_what_its_mode_declares(tmp_path: Path, mode: Any, early_stop: bool, again: int) -> None:
    """A checkpoint stops early once all inputs of backward exist; the last product's output is not one."""
    model = GPT(CONFIG)
    apply_recompute(model, mode)
    with checkpoint.set_checkpoint_early_stop(early_stop):
        flop_counts = counted(tmp_path / "run", gpt_step(model))
    assert by_phase(flop_counts).get(Phase.RECOMPUTE, 0) == again
    assert flop_counts.model(causal_half=False) == {"float32": step_flops(SHAPE, batch=BATCH).model}


def plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scores, softmax and mixing of the whole square, each an operator of its own."""
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    mask = torch.ones(query.shape[2], query.shape[2]).tril().log()
    return (query @ key.transpose(2, 3) / query.shape[3] ** 0.5 + mask).softmax(-1) @ value


def repeated_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    result: Tensor = checkpoint.checkpoint(plain_attention, query, key, value, use_reentrant=False)
    return result


@pytest.mark.parametrize(
    ("early_stop", "again"),
    [pytest.param(False, ATTENTION, id="whole"), pytest.param(True, ATTENTION // 2, id="early stop")],
)
def test_selective_recomputation_of_attention_repeats_a_third_of_equation_8(
    tmp_path: Path, early_stop: bool, again: int
) -> None:
    """Korthikanti et al. 2022, arXiv:2205.05198, equation 8 counts attention's forward and backward.

    Only its forward repeats.

    An early stop omits the mixing, the second of its two products.
    """
    model = GPT(CONFIG)
    for module in model.modules():
        if isinstance(module, Core):
            module.attend = repeated_attention
    with checkpoint.set_checkpoint_early_stop(early_stop):
        flop_counts = counted(tmp_path / "run", gpt_step(model))
    assert by_phase(flop_counts)[Phase.RECOMPUTE] == again
    assert flop_counts.model(causal_half=False) == {"float32": step_flops(SHAPE, batch=BATCH).model}
    printed = step_flops(SHAPE, batch=BATCH, recompute=Recompute.SELECTIVE)
    assert printed.hardware - printed.model == 3 * ATTENTION


class Product(torch.autograd.Function):
    """Gradients are off in its forward, as in the layers of Megatron and of fused kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


class OwnBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(Product.apply(x, self.weight))


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_autograd_function_is_recomputed_too(tmp_path: Path, reentrant: bool) -> None:
    layer, x = OwnBackward(), torch.ones(4, 8, requires_grad=True)
    flop_counts = counted(tmp_path / "run", lambda: checkpoint.checkpoint(layer, x, use_reentrant=reentrant).sum())
    once = 2 * 4 * 8 * 8
    assert by_phase(flop_counts) == {Phase.FORWARD: once, Phase.RECOMPUTE: once, Phase.BACKWARD: 2 * once}
