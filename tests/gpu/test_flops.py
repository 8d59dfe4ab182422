"""FLOPs counted on a GPU against the formula: products in bf16, fused causal attention, and compiled code."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import traincope
from tests.gpu.figures import Figures
from tests.gpu.readers import failed_hooks, only_rank
from traincope.analysis.efficiency.counted_flops import CountedFlops, counted_flops
from traincope.engine.config import ModelConfig
from traincope.engine.model.model import GPT, next_token_loss
from traincope.plan.model.flops import StepFlops, step_flops
from traincope.plan.model.transformer import Transformer

CONFIG = ModelConfig(layers=2, hidden=256, heads=4, kv_heads=2, ffn=704, sequence=256)
SHAPE = Transformer(
    layers=2, hidden=256, heads=4, kv_heads=2, ffn=704, gated_mlp=True, vocabulary=CONFIG.vocabulary, sequence=256
)
BATCH, STEPS = 2, 4


@pytest.fixture(autouse=True)
def _compile_anew() -> None:
    """Code that an earlier test compiled may run unseen, so nothing would be counted."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def flops_of(directory: Path, wrap: Callable[[GPT], Callable[..., torch.Tensor]]) -> CountedFlops:
    torch.manual_seed(0)
    gpt = GPT(CONFIG, autocast=torch.bfloat16).cuda()
    tokens = torch.randint(CONFIG.vocabulary, (BATCH, CONFIG.sequence + 1), device="cuda")
    with traincope.run(directory, budget=None) as run:
        model = wrap(gpt)
        for _ in range(STEPS):
            gpt.zero_grad()  # a CUDA graph overwrites the gradients that its last replay returned
            next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()  # type: ignore[no-untyped-call]
            run.step()
        torch.cuda.synchronize()
    rank = only_rank(directory)
    assert failed_hooks(rank) == {}
    (timeline,) = traincope.open_run(directory).ranks
    counted = counted_flops(timeline)
    assert counted is not None, rank.info.probes["flops"]
    return counted


def formula(*, causal_half: bool) -> StepFlops:
    return step_flops(SHAPE, batch=BATCH, causal_half=causal_half)


def test_a_gpt_in_bf16_has_the_flops_of_the_formula(tmp_path: Path, figures: Figures) -> None:
    counted = flops_of(tmp_path / "run", lambda gpt: gpt)
    assert counted.model(causal_half=False) == {"bfloat16": formula(causal_half=False).model}
    assert counted.model(causal_half=True) == {"bfloat16": formula(causal_half=True).model}
    assert counted.coverage_ratio == 1
    figures.take("FLOPs of a GPT in bf16, counted / formula", measured="1", held_to="1")


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_code_has_the_flops_of_the_formula(tmp_path: Path, figures: Figures, mode: str) -> None:
    """The kernels are Inductor's, and in CUDA graphs with `reduce-overhead`. The graphs of the training's operators say
    what they compute.
    """
    counted = flops_of(tmp_path / "run", lambda gpt: torch.compile(gpt, mode=mode))
    assert counted.model(causal_half=False) == {"bfloat16": formula(causal_half=False).model}
    figures.take(f"FLOPs of the same GPT by torch.compile, mode {mode}, counted / formula", measured="1", held_to="1")
