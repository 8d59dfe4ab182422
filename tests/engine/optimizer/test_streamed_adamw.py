"""AdamW from files equals torch's to the bit, with one block's moments in memory at a time."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.sharing.test_mapped import file_of
from tests.engine.tensor_bytes import TensorBytes
from traincope.engine.optimizer.streamed_adamw import StreamedAdamW

FLOAT = 4
SIZES = ((6, 5), (7,), (3, 9))
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95)}


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size)) for size in SIZES]


def groups(weights: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": [parameter for parameter in weights if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in weights if parameter.ndim == 1], "weight_decay": 0.0},
    ]


def streamed(weights: list[nn.Parameter], directory: Path) -> StreamedAdamW:
    return StreamedAdamW(groups(weights), blocks=[weights[:2], weights[2:]], directory=str(directory), **SETTINGS)


def gradients(step: int) -> Iterator[Tensor]:
    torch.manual_seed(step)
    return (torch.randn(size) for size in SIZES)


def train(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, *, steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(weights, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()


def test_updates_equal_torchs_adamw_to_the_bit(tmp_path: Path) -> None:
    whole, from_files = parameters(), parameters()
    reference = torch.optim.AdamW(groups(whole), fused=True, **SETTINGS)
    optimizer = streamed(from_files, tmp_path)
    train(whole, reference, steps=range(4))
    train(from_files, optimizer, steps=range(4))
    for parameter, other in zip(whole, from_files, strict=True):
        assert torch.equal(parameter, other)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(reference.state[parameter][name], optimizer.state[other][name])
        assert file_of(optimizer.state[other]["exp_avg"]).startswith(str(tmp_path))


def test_a_parameter_without_a_gradient_does_not_change(tmp_path: Path) -> None:
    weights = parameters()
    optimizer = streamed(weights, tmp_path)
    before = [parameter.detach().clone() for parameter in weights]
    weights[1].grad = torch.ones(7)
    optimizer.step()
    assert [torch.equal(parameter, old) for parameter, old in zip(weights, before, strict=True)] == [True, False, True]
    assert [int(optimizer.state[parameter]["step"]) for parameter in weights] == [0, 1, 0]


def test_a_step_holds_the_moments_of_its_largest_block(tmp_path: Path) -> None:
    """Blocks of 37 and 27 numbers, two moments each. torch's AdamW keeps both moments of all 64."""
    whole, from_files = parameters(), parameters()
    reference, optimizer = torch.optim.AdamW(groups(whole), fused=True, **SETTINGS), streamed(from_files, tmp_path)
    for weights in (whole, from_files):
        for parameter, gradient in zip(weights, gradients(0), strict=True):
            parameter.grad = gradient
    with TensorBytes(older=_with_gradients(whole)) as kept:
        reference.step()
    steps = [optimizer.state[parameter]["step"] for parameter in from_files]
    with TensorBytes(older=[*_with_gradients(from_files), *steps]) as passed:
        optimizer.step()
    assert passed.peak == 2 * 37 * FLOAT
    assert kept.peak >= 2 * 64 * FLOAT


def _with_gradients(weights: list[nn.Parameter]) -> list[Tensor]:
    return [tensor for parameter in weights for tensor in (parameter, parameter.grad) if tensor is not None]


def test_a_loaded_state_is_written_to_the_files(tmp_path: Path) -> None:
    through, first = parameters(), parameters()
    train(through, streamed(through, tmp_path), steps=range(4))
    before = streamed(first, tmp_path)
    train(first, before, steps=range(2))
    reloaded = [nn.Parameter(parameter.detach().clone()) for parameter in first]
    after = streamed(reloaded, tmp_path)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert all(file_of(after.state[parameter]["exp_avg_sq"]).startswith(str(tmp_path)) for parameter in reloaded)
    train(reloaded, after, steps=range(2, 4))
    assert all(torch.equal(parameter, other) for parameter, other in zip(through, reloaded, strict=True))
