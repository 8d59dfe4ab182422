"""The scale of the loss in fp16, whose smallest numbers are larger than many gradients.

torch's GradScaler keeps the scale (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2). It is given one gradient:
the norm of the whole gradient, which all ranks have. The norm is infinite or NaN if one number on one rank is. So all
ranks skip a step together, in every layout, without a message of their own.
"""

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from traincope.engine.config import ScalingConfig


class LossScaler:
    """Grows after `growth_interval` steps without an overflow, halves after an overflow. Scales are powers of two."""

    def __init__(self, config: ScalingConfig, *, device: torch.device) -> None:
        self._scaler = GradScaler(device.type, init_scale=config.initial, growth_interval=config.growth_interval)
        self._scaler.scale(torch.ones((), device=device))  # creates the scale, also on ranks without a loss
        self._norm = nn.Parameter(torch.zeros((), device=device))
        self._unscaled = torch.optim.SGD([self._norm], lr=0.0)
        """Never steps: it shows the norm to the scaler."""
        self.state = torch.zeros(2, dtype=torch.float64)
        """The scale, and the steps since it changed, as `save` has read them and `load` sets them."""

    @property
    def scale(self) -> float:
        return float(self._scaler.get_scale())

    def scaled(self, loss: Tensor) -> Tensor:
        """The same loss, whose backward gives gradients times the scale."""
        if loss.requires_grad:
            loss.register_hook(self._scaler.scale)
        return loss

    def unscale(self, norm: Tensor) -> Tensor:
        """Norm of the scaled gradient -> of the gradient; not finite if the gradient overflowed. Once per step."""
        self._norm.grad = norm.detach().clone()
        self._scaler.unscale_(self._unscaled)
        return self._norm.grad

    def end_step(self) -> None:
        """Change the scale if it is due, after `unscale`."""
        self._scaler.update()

    def save(self) -> Tensor:
        """Read the state into `state`."""
        values = self._scaler.state_dict()
        self.state.copy_(torch.tensor([values["scale"], values["_growth_tracker"]], dtype=torch.float64))
        return self.state

    def load(self) -> None:
        """Continue from `state`."""
        scale, steps = self.state.tolist()
        self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale, "_growth_tracker": int(steps)})
