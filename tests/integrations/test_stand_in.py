"""An object that a framework takes for another one."""

from types import SimpleNamespace

from traincope.integrations.training.stand_in import StandIn


class Counting(StandIn):
    __slots__ = ("_calls",)


def test_what_a_framework_sets_is_set_on_the_original() -> None:
    original = SimpleNamespace(tokens=1)
    counting = Counting(original)
    counting.tokens += 5
    counting._calls = 3
    counting.new = "value"
    assert vars(original) == {"tokens": 6, "new": "value"}
    assert (counting.tokens, counting._calls) == (6, 3)
