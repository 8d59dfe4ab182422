"""Interleaved 1F1B: V stages a rank, so that a microbatch comes round V times in smaller pieces."""

from traincope.plan.actions import BACKWARD, FORWARD, Action, Order
from traincope.plan.orders.shape import Shape, loop


def interleaved(rank: int, shape: Shape) -> Order:
    """Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2; M must be a multiple of P.

    Forwards take P microbatches through each of the rank's stages before the next P begin,
    backwards the same from the last stage on; 2 more forwards run ahead for each rank that follows.
    """
    every = shape.chunks * shape.microbatches
    ahead = min((shape.chunks - 1) * shape.ranks + 2 * (shape.ranks - 1 - rank), every)
    forwards = [_nth(n, FORWARD, loop(rank, shape), ranks=shape.ranks) for n in range(every)]
    backwards = [_nth(n, BACKWARD, loop(rank, shape)[::-1], ranks=shape.ranks) for n in range(every)]
    steady = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return (*forwards[:ahead], *steady, *backwards[every - ahead :])


def _nth(n: int, kind: str, stages: tuple[int, ...], *, ranks: int) -> Action:
    """The rank's n-th action of a kind, its stages taken in this order."""
    turn, member = divmod(n, ranks)
    group, chunk = divmod(turn, len(stages))
    return Action(kind, stages[chunk], group * ranks + member)
