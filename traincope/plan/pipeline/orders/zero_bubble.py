"""Zero-bubble schedules: no other rank waits for a weight gradient W, so W fills idle time.

Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv:2401.10241: its orders for equal F, I and W.
"""

from collections.abc import Iterator

from traincope.plan.pipeline.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Order
from traincope.plan.pipeline.orders.shape import Shape, vee


def zb_1p(rank: int, shape: Shape) -> Order:
    """1F1B with rank r postponing r weight gradients. Each rank holds as much as 1F1B's first rank.

    This is the paper's hand-made ZB-H1 (section 2.2), which its search for ZB-1P also finds for equal times.
    """
    microbatches = shape.microbatches
    ahead = min(shape.ranks - 1 - rank, microbatches)
    order = [Action(FORWARD, rank, m) for m in range(ahead)]
    for m in range(microbatches):
        if m + ahead < microbatches:
            order.append(Action(FORWARD, rank, m + ahead))
        order.append(Action(BACKWARD_INPUT, rank, m))
        if m >= rank:
            order.append(Action(BACKWARD_WEIGHT, rank, m - rank))
    postponed = range(max(microbatches - rank, 0), microbatches)
    return (*order, *(Action(BACKWARD_WEIGHT, rank, m) for m in postponed))


def zb_v(rank: int, shape: Shape) -> Order:
    """Two stages per rank in a V: the memory of 1F1B, and no idle time after a rank's first action.

    arXiv:2401.10241, section 6. Written for M >= 2 P - 1. The order for fewer microbatches is that order without the
    others.
    """
    order = _kinds(rank, ranks=shape.ranks, microbatches=max(shape.microbatches, 2 * shape.ranks - 1))
    return tuple(
        action for action in _numbered(order, stages=vee(rank, shape)) if action.microbatch < shape.microbatches
    )


Step = tuple[str, int]
"""(kind of action, the rank's first or second stage)."""

F0, F1 = (FORWARD, 0), (FORWARD, 1)
I0, I1 = (BACKWARD_INPUT, 0), (BACKWARD_INPUT, 1)
W0, W1 = (BACKWARD_WEIGHT, 0), (BACKWARD_WEIGHT, 1)


def _kinds(rank: int, *, ranks: int, microbatches: int) -> list[Step]:
    """The rank's steps without microbatch numbers: warm-up, steady state, cool-down."""
    order = [F0] * (2 * (ranks - rank) - 1) + [F1, F0] * rank + [F1, I1, W1] * (ranks - rank)
    while order.count(F0) < microbatches or order.count(F1) < order.count(F0):
        more = [F0] if order.count(F0) < microbatches else []
        order += [*more, I0, W0, F1, I1, W1]
    order += [I0, I1] * rank + [I0, W0] * (ranks - rank)
    order += [W1] * (order.count(I1) - order.count(W1))
    return order + [W0] * (order.count(I0) - order.count(W0))


def _numbered(order: list[Step], *, stages: tuple[int, ...]) -> Iterator[Action]:
    """Number the microbatches: each kind of each stage takes them in turn."""
    done: dict[Step, int] = {}
    for step in order:
        kind, chunk = step
        yield Action(kind, stages[chunk], done.setdefault(step, 0))
        done[step] += 1
