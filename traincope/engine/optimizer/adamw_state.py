"""AdamW's state where it does not lie with its parameters, and one parameter's update by torch's own kernel."""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from traincope.engine.ranks.torch_private import dtensor_like

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the moments in torch.optim.AdamW."""


def defaults(*, lr: float, betas: tuple[float, float]) -> dict[str, Any]:
    """Defaults of a parameter group, as torch.optim.AdamW has them."""
    return {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": 0.0}


def update(
    parameter: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], *, step: Tensor, settings: dict[str, Any]
) -> None:
    """Update one parameter in place, all tensors on one device. `settings` are those of the parameter's group."""
    beta1, beta2 = settings["betas"]
    adamw(
        [parameter],
        [gradient],
        [moments[0]],
        [moments[1]],
        [],
        [step],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        eps=settings["eps"],
        maximize=False,
    )


def like(parameter: Tensor, local: Tensor) -> Tensor:
    """Wrap `local` as a tensor that is sharded like `parameter`. `local` may be on another device."""
    return dtensor_like(parameter, local) if isinstance(parameter, DTensor) else local
