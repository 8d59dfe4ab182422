"""Pipeline schedules as plain data: for each stage, its actions in order.

An action is written as torch writes it: `1F0` is stage 1's forward of microbatch 0, `1B0` the
backward. Sends and receives are added by torch's runtime. A new schedule is one function here and
one line in ORDERS.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

Order = list[str]


def gpipe(stage: int, *, stages: int, microbatches: int) -> Order:  # noqa: ARG001 - a schedule's common signature
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""
    return [f"{stage}F{m}" for m in range(microbatches)] + [f"{stage}B{m}" for m in range(microbatches)]


def one_forward_one_backward(stage: int, *, stages: int, microbatches: int) -> Order:
    """Forwards until the first gradient can arrive, then one of each in turn.

    The schedule of PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503, section 2.2): a stage
    holds the activations of at most `stages - stage` microbatches.
    """
    ahead = min(stages - 1 - stage, microbatches)
    order = [f"{stage}F{m}" for m in range(ahead)]
    for m in range(microbatches):
        if m + ahead < microbatches:
            order.append(f"{stage}F{m + ahead}")
        order.append(f"{stage}B{m}")
    return order


ORDERS: Mapping[str, Callable[..., Order]] = MappingProxyType({"gpipe": gpipe, "1f1b": one_forward_one_backward})
"""Name in a configuration -> schedule, called as `order(stage, stages=..., microbatches=...)`."""
