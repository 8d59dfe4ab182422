"""AdamW's parameter groups and warm-up, against numbers computed by hand."""

import pytest
import torch
from torch import nn

from traincope.engine.config import OptimizerConfig
from traincope.engine.optimizer.optimizer import build_optimizer, set_learning_rate


def test_only_matrices_decay() -> None:
    matrix, gain = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([matrix, gain], OptimizerConfig(lr=0.1, weight_decay=0.5))
    matrix.grad, gain.grad = torch.zeros(2, 2), torch.zeros(2)
    optimizer.step()
    assert torch.equal(gain, torch.ones(2))
    torch.testing.assert_close(matrix, torch.full((2, 2), 1 - 0.1 * 0.5))


def test_the_first_step_changes_weights_by_the_learning_rate() -> None:
    gain = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([gain], OptimizerConfig(lr=0.1))
    gain.grad = torch.tensor([5.0, -0.01])
    optimizer.step()
    torch.testing.assert_close(gain, torch.tensor([0.9, 1.1]), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(("warmup", "rates"), [(0, [0.4, 0.4, 0.4]), (2, [0.2, 0.4, 0.4]), (4, [0.1, 0.2, 0.3])])
def test_the_warm_up_is_linear(warmup: int, rates: list[float]) -> None:
    config = OptimizerConfig(lr=0.4, warmup=warmup)
    optimizer = build_optimizer([nn.Parameter(torch.ones(1))], config)
    used_rates = []
    for step in (1, 2, 3):
        set_learning_rate(optimizer, config, step=step)
        used_rates.append(optimizer.param_groups[0]["lr"])
    assert used_rates == pytest.approx(rates)
