"""Which window of the run an address asks for."""

import pytest

from traincope.store.tiles import Header
from traincope.viewer.drawing import window_of
from traincope.viewer.view import View

HEADER = Header(origin_ns=0, length_ns=1000, steps=((3, 100, 300), (4, 300, 400)))


@pytest.mark.parametrize(
    ("asked", "window"),
    [
        ("", (0, 1000)),
        ("?from=10&to=20", (10, 20)),
        ("?from=20&to=10", (0, 1000)),
        ("?step=3", (90, 310)),
        ("?step=999", (0, 1000)),
        ("?at=500", (480, 520)),
    ],
)
def test_it_is_what_the_address_says_else_the_whole(asked: str, window: tuple[int, int]) -> None:
    assert window_of(View.of("/timeline", asked), HEADER) == window


@pytest.mark.parametrize(
    ("asked", "window"),
    [
        ("?from=-99999&to=99999", (-1000, 2000)),
        ("?from=-10&to=99999", (-10, 2000)),
        ("?from=5000&to=6000", (0, 1000)),
    ],
)
def test_of_the_emptiness_around_it_a_run_shows_as_much_as_it_is_long(asked: str, window: tuple[int, int]) -> None:
    assert window_of(View.of("/timeline", asked), HEADER) == window
