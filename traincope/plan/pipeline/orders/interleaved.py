"""Interleaved 1F1B: V stages per rank, so that a microbatch passes each rank V times in smaller pieces."""

from traincope.plan.pipeline.actions import BACKWARD, FORWARD, Action, Order
from traincope.plan.pipeline.orders.shape import Shape, loop


def interleaved(rank: int, shape: Shape) -> Order:
    """Order of a rank. M must be a multiple of P.

    Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2. Forwards take P microbatches through each of the rank's
    stages before the next P begin. Backwards do the same from the last stage on. For each later rank, 2 more forwards
    run ahead.
    """
    total = shape.chunks * shape.microbatches
    ahead = min((shape.chunks - 1) * shape.ranks + 2 * (shape.ranks - 1 - rank), total)
    forwards = [_nth(n, FORWARD, loop(rank, shape), ranks=shape.ranks) for n in range(total)]
    backwards = [_nth(n, BACKWARD, loop(rank, shape)[::-1], ranks=shape.ranks) for n in range(total)]
    steady = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return (*forwards[:ahead], *steady, *backwards[total - ahead :])


def _nth(n: int, kind: str, stages: tuple[int, ...], *, ranks: int) -> Action:
    """The rank's n-th action of a kind, with its stages in this order."""
    turn, member = divmod(n, ranks)
    group, chunk = divmod(turn, len(stages))
    return Action(kind, stages[chunk], group * ranks + member)
