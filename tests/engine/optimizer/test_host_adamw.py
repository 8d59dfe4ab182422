"""AdamW on the host equals torch's on a CPU, to the bit and to the byte. `tests/gpu/test_offload.py` tests a GPU."""

import copy

import torch

from tests.engine.optimizer.test_streamed_adamw import SETTINGS, gradients, groups, parameters, train
from tests.engine.tensor_bytes import TensorBytes
from traincope.engine.optimizer.host_adamw import HostAdamW


def test_updates_equal_torchs_adamw_to_the_bit() -> None:
    whole, hosted = parameters(), parameters()
    reference, optimizer = (
        torch.optim.AdamW(groups(whole), fused=True, **SETTINGS),
        HostAdamW(groups(hosted), **SETTINGS),
    )
    train(whole, reference, steps=range(4))
    train(hosted, optimizer, steps=range(4))
    for parameter, other in zip(whole, hosted, strict=True):
        assert torch.equal(parameter, other)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(reference.state[parameter][name], optimizer.state[other][name])


def test_a_parameter_without_a_gradient_does_not_change() -> None:
    weights = parameters()
    optimizer = HostAdamW(groups(weights), **SETTINGS)
    before = [parameter.detach().clone() for parameter in weights]
    weights[1].grad = torch.ones(7)
    optimizer.step()
    assert [torch.equal(parameter, old) for parameter, old in zip(weights, before, strict=True)] == [True, False, True]
    assert [int(optimizer.state[parameter]["step"]) for parameter in weights] == [0, 1, 0]


def test_on_a_cpu_a_step_copies_nothing() -> None:
    """All memory is four numbers of 4 bytes for each of 64 elements, and a step for each of three parameters."""
    weights = parameters()
    for parameter, gradient in zip(weights, gradients(0), strict=True):
        parameter.grad = gradient
    optimizer = HostAdamW(groups(weights), **SETTINGS)
    with TensorBytes() as tensors:
        optimizer.step()
    assert tensors.peak == 4 * 4 * 64 + 3 * 4


def test_training_continues_from_a_loaded_state() -> None:
    through, first = parameters(), parameters()
    train(through, HostAdamW(groups(through), **SETTINGS), steps=range(4))
    before = HostAdamW(groups(first), **SETTINGS)
    train(first, before, steps=range(2))
    reloaded = [torch.nn.Parameter(parameter.detach().clone()) for parameter in first]
    after = HostAdamW(groups(reloaded), **SETTINGS)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    train(reloaded, after, steps=range(2, 4))
    assert all(torch.equal(parameter, other) for parameter, other in zip(through, reloaded, strict=True))
