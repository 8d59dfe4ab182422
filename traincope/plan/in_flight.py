"""How much a rank of a pipeline holds at once, by its order."""

from collections.abc import Mapping

from traincope.plan.actions import BACKWARD_INPUT, FORWARD, Order


def most_held(order: Order, held: Mapping[int, int]) -> int:
    """The most that a rank holds at once, where a microbatch on a stage holds `held[stage]`.

    From its forward to the end of its backward; where that is split to the end of W, which still needs
    the inputs of the products.
    """
    most = now = 0
    for action in order:
        if action.kind == FORWARD:
            now += held[action.stage]
            most = max(most, now)
        elif action.kind != BACKWARD_INPUT:
            now -= held[action.stage]
    return most
