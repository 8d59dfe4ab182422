"""Numbers that go wrong while the training goes on."""

from collections.abc import Callable
from typing import Any

from traincope.inject.injection import Moment
from traincope.inject.kinds.fault import Fault, Injector, no_rank

SPIKE = 16.0
"""Factor on all parameters for a spike of the loss."""
SIGN_AND_EXPONENT_BIT = 30
"""A high bit of a float32's exponent."""

ChangeParameters = Callable[[list[Any]], None]


def _arm(change: ChangeParameters, *, moment: Moment, everywhere: bool = False) -> Callable[[Injector], None]:
    """Change the parameters of the first optimizer once."""

    def arm(injector: Injector) -> None:
        def act(step: int) -> None:
            if step == injector.injection.step:
                injector.tell(step)
                change(injector.moments.parameters())

        if everywhere or injector.rank == injector.injection.rank:
            injector.moments.at(moment, act)

    return arm


def _poison(parameters: list[Any]) -> None:
    """Make one gradient NaN as soon as backward computes it, before it is reduced."""
    handles: list[Any] = []

    def poisoned(gradient: Any) -> Any:
        for handle in handles:
            handle.remove()
        return gradient * float("nan")

    handles.append(parameters[0].register_hook(poisoned))


def _spike(parameters: list[Any]) -> None:
    import torch

    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(SPIKE)


def _flip(parameters: list[Any]) -> None:
    """Flip one bit of the first element of the first float32 parameter."""
    import torch

    data = next(parameter for parameter in parameters if parameter.dtype == torch.float32).data
    local = getattr(data, "_local_tensor", data).view(-1)
    local[:1].view(torch.int32).bitwise_xor_(1 << SIGN_AND_EXPONENT_BIT)


VALUES = (
    Fault(
        name="nan_gradient", what="one gradient of the rank is not a number", arm=_arm(_poison, moment=Moment.BACKWARD)
    ),
    Fault(
        name="loss_spike",
        what="all ranks' parameters grow at once, so the loss has a spike",
        arm=_arm(_spike, moment=Moment.END, everywhere=True),
        culprits=no_rank,
    ),
    Fault(name="flipped_bit", what="one bit of a parameter flips on one rank", arm=_arm(_flip, moment=Moment.END)),
)
