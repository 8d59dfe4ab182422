"""Histories of the largest numbers, and the scale of the loss, against sequences that are computed by hand."""

import torch

from traincope.engine.config import ScalingConfig
from traincope.engine.precision.loss_scaler import LossScaler
from traincope.engine.precision.scales import Operand, end_step, power_of_two_scale
from traincope.engine.ranks.mesh import Layout

CPU = torch.device("cpu")
E4M3 = torch.float8_e4m3fn


def scale_after(operand: Operand, *numbers: float) -> float:
    return operand.scale(torch.tensor(numbers)).item()


def test_a_scale_is_the_largest_power_of_two_that_fits() -> None:
    """448 / 448 = 1; 448 / 449 is below 1; 448 / 3 = 149.3; an amax of 0 has the scale 1."""
    amaxes = torch.tensor([448.0, 449.0, 3.0, 0.0, 1e-40])
    assert power_of_two_scale(amaxes, E4M3).tolist() == [1.0, 0.5, 128.0, 1.0, 2.0**100]


def test_scales_follow_the_largest_number_of_the_last_steps() -> None:
    operand = Operand(E4M3, steps=2, device=CPU)
    operands = {"layer": operand}
    seen = []
    for number in (7.0, 100.0, 3.0, 3.0, 3.0):
        seen.append(scale_after(operand, number))
        operand.record(torch.tensor([0.5, -number]))
        end_step(operands, layout=Layout(mesh=None))
    # Step 1 has no history: 448 / 7 = 64. Then max(7) -> 64, max(7, 100) -> 4, max(100, 3) -> 4, max(3, 3) -> 128.
    assert seen == [64.0, 64.0, 4.0, 4.0, 128.0]
    assert operand.history.tolist() == [3.0, 3.0]


def test_an_infinity_does_not_enter_a_history() -> None:
    operand = Operand(E4M3, steps=2, device=CPU)
    operand.record(torch.tensor([1.0, float("inf")]))
    operand.record(torch.tensor([float("nan")]))
    operand.record(torch.tensor([2.0]))
    assert operand.amax.item() == 2.0
    operand.forget()
    assert operand.amax.item() == 0.0


def test_the_loss_scale_grows_and_backs_off_as_computed_by_hand() -> None:
    """Interval 3: three good steps double; an overflow halves and starts the count anew."""
    scaler = LossScaler(ScalingConfig(initial=8.0, growth_interval=3), device=CPU)
    scales = []
    for norm in (8.0, 8.0, 8.0, float("inf"), 8.0, 8.0, float("nan"), 8.0, 8.0, 8.0):
        scales.append(scaler.scale)
        unscaled = scaler.unscale(torch.tensor(norm))
        assert unscaled.isfinite().item() == (norm == 8.0)
        if norm == 8.0:
            assert unscaled.item() == 8.0 / scales[-1]
        scaler.end_step()
    assert scales == [8.0, 8.0, 8.0, 16.0, 8.0, 8.0, 8.0, 4.0, 4.0, 4.0]
    assert scaler.scale == 8.0


def test_a_saved_loss_scale_continues() -> None:
    first = LossScaler(ScalingConfig(initial=8.0, growth_interval=3), device=CPU)
    second = LossScaler(ScalingConfig(initial=2.0, growth_interval=3), device=CPU)
    for _ in range(2):
        first.unscale(torch.tensor(1.0))
        first.end_step()
    second.save().copy_(first.save())
    second.load()
    second.unscale(torch.tensor(1.0))
    second.end_step()
    assert second.scale == 16.0


def test_the_loss_is_unchanged_and_its_gradient_scaled() -> None:
    scaler = LossScaler(ScalingConfig(initial=1024.0), device=CPU)
    x = torch.tensor(3.0, requires_grad=True)
    loss = scaler.scaled(x * 2)
    loss.backward()
    assert (loss.item(), x.grad) == (6.0, torch.tensor(2048.0))
