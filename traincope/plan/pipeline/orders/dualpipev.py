"""DualPipeV: one half of DualPipe (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1), two stages per rank in a V.

Its steps are those of github.com/deepseek-ai/DualPipe, dualpipev.py. That code overlaps a forward with a backward to
hide expert parallelism's all-to-all; here one follows the other.
"""

from collections import deque

from traincope.plan.pipeline.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Order
from traincope.plan.pipeline.orders.shape import Shape, vee


def dualpipev(rank: int, shape: Shape) -> Order:
    """Order of a rank in eight steps. M must be at least 2 P."""
    order = _Order(vee(rank, shape))
    later = shape.ranks - rank - 1
    order.repeat(2 * later, "F0")
    order.repeat(rank + 1, "F0 F1")
    order.repeat(later, "I1 W F1")
    order.repeat(shape.microbatches - 2 * shape.ranks + rank + 1, "F0 B1 F1 B0")
    order.repeat(later, "B1 F1 B0")
    whole, split = divmod(rank + 1, 2)
    order.repeat(whole, "B1 B0")
    # In the middle of the cool-down, weight gradients begin to be postponed.
    order.repeat(split, "B1 I0")
    order.repeat(rank + 1 - whole - split, "I1 I0")
    order.repeat(later, "W I0")
    order.repeat(rank + 1, "W")
    return tuple(order.actions)


class _Order:
    """Builds an order: it numbers microbatches as actions are added, and queues weight gradients."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.actions: list[Action] = []
        self._stages = stages
        self._forwards, self._backwards = [0, 0], [0, 0]
        self._due: deque[Action] = deque()

    def repeat(self, times: int, steps: str) -> None:
        """Append steps `times` times.

        Each step is a kind and the rank's first or second stage. W is the oldest queued weight gradient, if any.
        """
        for step in steps.split() * times:
            if step == BACKWARD_WEIGHT:
                self.actions += [self._due.popleft()] if self._due else []
            else:
                self._add(step[0], int(step[1]))

    def _add(self, kind: str, chunk: int) -> None:
        numbers = self._forwards if kind == FORWARD else self._backwards
        action = Action(kind, self._stages[chunk], numbers[chunk])
        numbers[chunk] += 1
        self.actions.append(action)
        if kind == BACKWARD_INPUT:
            self._due.append(action._replace(kind=BACKWARD_WEIGHT))
