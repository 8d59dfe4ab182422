"""AdamW from files: torch's own, to the bit, with one block's moments in memory at a time."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.tensor_bytes import TensorBytes
from tests.engine.test_mapped import file_of
from traincope.engine.streamed_adamw import StreamedAdamW

FLOAT = 4
SIZES = ((6, 5), (7,), (3, 9))
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95)}


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size)) for size in SIZES]


def groups(given: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": [one for one in given if one.ndim > 1], "weight_decay": 0.1},
        {"params": [one for one in given if one.ndim == 1], "weight_decay": 0.0},
    ]


def streamed(given: list[nn.Parameter], directory: Path) -> StreamedAdamW:
    return StreamedAdamW(groups(given), blocks=[given[:2], given[2:]], directory=str(directory), **SETTINGS)


def gradients(step: int) -> Iterator[Tensor]:
    torch.manual_seed(step)
    return (torch.randn(size) for size in SIZES)


def train(given: list[nn.Parameter], optimizer: torch.optim.Optimizer, *, steps: range) -> None:
    for step in steps:
        for one, gradient in zip(given, gradients(step), strict=True):
            one.grad = gradient
        optimizer.step()


def test_it_is_torchs_adamw_to_the_bit(tmp_path: Path) -> None:
    whole, from_files = parameters(), parameters()
    reference = torch.optim.AdamW(groups(whole), fused=True, **SETTINGS)
    optimizer = streamed(from_files, tmp_path)
    train(whole, reference, steps=range(4))
    train(from_files, optimizer, steps=range(4))
    for one, other in zip(whole, from_files, strict=True):
        assert torch.equal(one, other)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(reference.state[one][name], optimizer.state[other][name])
        assert file_of(optimizer.state[other]["exp_avg"]).startswith(str(tmp_path))


def test_a_parameter_without_a_gradient_is_left_as_it_is(tmp_path: Path) -> None:
    given = parameters()
    optimizer = streamed(given, tmp_path)
    before = [one.detach().clone() for one in given]
    given[1].grad = torch.ones(7)
    optimizer.step()
    assert [torch.equal(one, old) for one, old in zip(given, before, strict=True)] == [True, False, True]
    assert [int(optimizer.state[one]["step"]) for one in given] == [0, 1, 0]


def test_a_step_holds_the_moments_of_its_largest_block(tmp_path: Path) -> None:
    """Blocks of 37 and 27 numbers, two moments each; torch's AdamW makes both moments of all 64, and keeps them."""
    whole, from_files = parameters(), parameters()
    reference, optimizer = torch.optim.AdamW(groups(whole), fused=True, **SETTINGS), streamed(from_files, tmp_path)
    for given in (whole, from_files):
        for one, gradient in zip(given, gradients(0), strict=True):
            one.grad = gradient
    with TensorBytes(older=_with_gradients(whole)) as kept:
        reference.step()
    steps = [optimizer.state[one]["step"] for one in from_files]
    with TensorBytes(older=[*_with_gradients(from_files), *steps]) as passed:
        optimizer.step()
    assert passed.peak == 2 * 37 * FLOAT
    assert kept.peak >= 2 * 64 * FLOAT


def _with_gradients(given: list[nn.Parameter]) -> list[Tensor]:
    return [tensor for one in given for tensor in (one, one.grad) if tensor is not None]


def test_a_state_that_is_loaded_goes_to_the_files(tmp_path: Path) -> None:
    through, first = parameters(), parameters()
    train(through, streamed(through, tmp_path), steps=range(4))
    before = streamed(first, tmp_path)
    train(first, before, steps=range(2))
    then = [nn.Parameter(one.detach().clone()) for one in first]
    after = streamed(then, tmp_path)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert all(file_of(after.state[one]["exp_avg_sq"]).startswith(str(tmp_path)) for one in then)
    train(then, after, steps=range(2, 4))
    assert all(torch.equal(one, other) for one, other in zip(through, then, strict=True))
