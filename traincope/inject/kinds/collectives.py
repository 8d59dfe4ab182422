"""A rank that leaves out its next collective, or issues it in another way than the others."""

from typing import Any

from traincope.inject.calls import Change, in_group, left_out, with_tensors
from traincope.inject.kinds.fault import Fault, Injector, once


def _next(change: Change) -> Any:
    return once(lambda injector: injector.calls.once(change))


def _half(tensor: Any) -> Any:
    """The first half of a tensor; of an odd number of elements, one more."""
    flat = tensor.reshape(-1)
    return flat[: (flat.numel() + 1) // 2].clone() if flat.numel() > 1 else flat.repeat(2)


def _other_dtype(tensor: Any) -> Any:
    import torch

    return tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.float32)


def _other_first(injector: Injector) -> None:
    """Issue a broadcast before the call that the others issue, and leave out the call itself."""

    def change(operator: str, proceed: Any, arguments: tuple[Any, ...]) -> Any:
        import torch
        import torch.distributed as dist

        dist.broadcast(torch.zeros(1), src=injector.rank)
        return left_out(operator, proceed, arguments)

    injector.calls.once(change)


COLLECTIVES = (
    Fault(name="missing_collective", what="the rank leaves out its next collective", arm=_next(left_out)),
    Fault(
        name="other_collective",
        what="the rank issues a broadcast in place of its next collective",
        arm=once(_other_first),
    ),
    Fault(name="wrong_size", what="the rank's next collective has half the elements", arm=_next(with_tensors(_half))),
    Fault(
        name="wrong_dtype", what="the rank's next collective has another dtype", arm=_next(with_tensors(_other_dtype))
    ),
    Fault(
        name="wrong_group",
        what="the rank issues its next collective in another group",
        arm=once(lambda injector: injector.calls.once(in_group(injector.group))),
        needs_group=True,
    ),
)
