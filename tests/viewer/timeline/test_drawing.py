"""The window of the run that an address selects."""

import pytest

from traincope.tiles.storage import Header
from traincope.viewer.timeline.drawing import window_of
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
def test_the_window_is_the_addresss_or_the_whole_run(asked: str, window: tuple[int, int]) -> None:
    assert window_of(View.of("/timeline", asked), HEADER) == window


@pytest.mark.parametrize(
    ("asked", "window"),
    [
        ("?from=-99999&to=99999", (-1000, 2000)),
        ("?from=-10&to=99999", (-10, 2000)),
        ("?from=5000&to=6000", (0, 1000)),
    ],
)
def test_the_window_exceeds_a_run_by_at_most_its_length(asked: str, window: tuple[int, int]) -> None:
    assert window_of(View.of("/timeline", asked), HEADER) == window
