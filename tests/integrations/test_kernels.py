"""FLOPs of Liger's kernels and of PEFT's adapters, counted in the eager model, by hand and by the configuration."""

from pathlib import Path

import pytest

from tests.integrations.test_hugging_face import ATTENTION, TOKENS, WEIGHTS
from tests.integrations.training import Training, step_numbers, train
from traincope.analysis.efficiency.declared_flops import configured_flops

pytestmark = pytest.mark.integrations

HIDDEN, RANK = 32, 4


def flops(training: Training) -> tuple[float, float]:
    """FLOPs of a step, as counted and by the configuration."""
    by_formula = configured_flops(training.timeline, steps=range(6), experts=None)
    assert by_formula is not None
    assert step_numbers(training.timeline) == [[*range(6)]] * 2
    return training.document["utilization"]["model_flops_per_step"], by_formula.model


def test_ligers_kernels_have_the_flops_of_the_eager_model(tmp_path: Path) -> None:
    """Its loss multiplies by the output's matrix, forward and backward, within an `autograd.Function`."""
    liger = train(tmp_path, "kernels", "hugging_face", "liger", TRITON_INTERPRET="1")
    assert flops(liger) == (6 * WEIGHTS * TOKENS + ATTENTION, 6 * WEIGHTS * TOKENS + ATTENTION)


def test_adapters_of_peft_count_and_their_frozen_weights_have_no_gradients(tmp_path: Path) -> None:
    """A frozen weight has two products: forward, and the gradient of its input.

    The input of the first layer's queries, keys and values is the frozen embedding, which has no gradient. Attention
    runs backward there too, because of the adapters.
    """
    lora = train(tmp_path, "kernels", "hugging_face", "lora")
    frozen = 2 * 2 * WEIGHTS - 2 * 3 * HIDDEN * HIDDEN
    adapters = 2 * 2 * (HIDDEN * RANK + RANK * HIDDEN) * 3 * 2 - 2 * 2 * HIDDEN * RANK
    by_hand = (frozen + adapters) * TOKENS + ATTENTION
    assert flops(lora) == (by_hand, by_hand)
