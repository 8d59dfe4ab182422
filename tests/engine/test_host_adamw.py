"""AdamW on the host: on a CPU it is torch's own, to the bit and to the byte. On a GPU: `tests/gpu/test_offload.py`."""

import copy

import torch

from tests.engine.tensor_bytes import TensorBytes
from tests.engine.test_streamed_adamw import SETTINGS, gradients, groups, parameters, train
from traincope.engine.host_adamw import HostAdamW


def test_it_is_torchs_adamw_to_the_bit() -> None:
    whole, hosted = parameters(), parameters()
    reference, optimizer = (
        torch.optim.AdamW(groups(whole), fused=True, **SETTINGS),
        HostAdamW(groups(hosted), **SETTINGS),
    )
    train(whole, reference, steps=range(4))
    train(hosted, optimizer, steps=range(4))
    for one, other in zip(whole, hosted, strict=True):
        assert torch.equal(one, other)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(reference.state[one][name], optimizer.state[other][name])


def test_a_parameter_without_a_gradient_is_left_as_it_is() -> None:
    given = parameters()
    optimizer = HostAdamW(groups(given), **SETTINGS)
    before = [one.detach().clone() for one in given]
    given[1].grad = torch.ones(7)
    optimizer.step()
    assert [torch.equal(one, old) for one, old in zip(given, before, strict=True)] == [True, False, True]
    assert [int(optimizer.state[one]["step"]) for one in given] == [0, 1, 0]


def test_on_a_cpu_a_step_copies_nothing() -> None:
    """All there is: four numbers of 4 bytes for each of the 64, and a step for each of three parameters."""
    given = parameters()
    for one, gradient in zip(given, gradients(0), strict=True):
        one.grad = gradient
    optimizer = HostAdamW(groups(given), **SETTINGS)
    with TensorBytes() as tensors:
        optimizer.step()
    assert tensors.peak == 4 * 4 * 64 + 3 * 4


def test_a_state_that_is_loaded_is_gone_on_with() -> None:
    through, first = parameters(), parameters()
    train(through, HostAdamW(groups(through), **SETTINGS), steps=range(4))
    before = HostAdamW(groups(first), **SETTINGS)
    train(first, before, steps=range(2))
    then = [torch.nn.Parameter(one.detach().clone()) for one in first]
    after = HostAdamW(groups(then), **SETTINGS)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    train(then, after, steps=range(2, 4))
    assert all(torch.equal(one, other) for one, other in zip(through, then, strict=True))
