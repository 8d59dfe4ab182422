"""Schedules with one stage per rank and whole backwards."""

from traincope.plan.pipeline.actions import BACKWARD, FORWARD, Action, Order
from traincope.plan.pipeline.orders.shape import Shape


def naive(rank: int, shape: Shape) -> Order:
    """One microbatch at a time through all stages and back: model parallelism without a pipeline."""
    return tuple(Action(kind, rank, m) for m in range(shape.microbatches) for kind in (FORWARD, BACKWARD))


def gpipe(rank: int, shape: Shape) -> Order:
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""
    return tuple(Action(kind, rank, m) for kind in (FORWARD, BACKWARD) for m in range(shape.microbatches))


def one_forward_one_backward(rank: int, shape: Shape) -> Order:
    """Forwards until the first gradient can arrive, then one forward and one backward in turn.

    PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503, section 2.2). A rank holds the activations of at most P -
    rank microbatches.
    """
    ahead = min(shape.ranks - 1 - rank, shape.microbatches)
    order = [Action(FORWARD, rank, m) for m in range(ahead)]
    for m in range(shape.microbatches):
        if m + ahead < shape.microbatches:
            order.append(Action(FORWARD, rank, m + ahead))
        order.append(Action(BACKWARD, rank, m))
    return tuple(order)
