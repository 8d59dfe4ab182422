"""Gradient norm and clipping in one process. Shards and stages are tested in tests/distributed."""

import pytest
import torch
from torch import nn

from traincope.engine.optimizer.clipping import clip, gradient_norm
from traincope.engine.ranks.mesh import Layout


def parameters_with_gradients() -> list[nn.Parameter]:
    """Gradients (3, 0) and (4), whose norm is 5, and one parameter without a gradient."""
    first, second, third = (nn.Parameter(torch.zeros(size)) for size in (2, 1, 7))
    first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    return [first, second, third]


def test_the_gradient_norm_covers_all_parameters() -> None:
    assert gradient_norm(parameters_with_gradients(), layout=Layout(mesh=None)).item() == 5.0


@pytest.mark.parametrize(("limit", "first", "second"), [(2.5, 1.5, 2.0), (5.1, 3.0, 4.0)])
def test_clipping_scales_gradients_down_and_never_up(limit: float, first: float, second: float) -> None:
    parameters = parameters_with_gradients()
    clip(parameters, norm=torch.tensor(5.0), limit=limit)
    gradients = [parameter.grad for parameter in parameters]
    assert gradients[0] is not None
    assert gradients[1] is not None
    torch.testing.assert_close(gradients[0], torch.tensor([first, 0.0]))
    torch.testing.assert_close(gradients[1], torch.tensor([second]))
    assert gradients[2] is None
