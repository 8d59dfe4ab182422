import pytest

from traincope.figures.drawing.clock import clock

S = 1_000_000_000


@pytest.mark.parametrize(
    ("seconds", "unit", "end"),
    [(599, "s", 599), (600, "min", 10), (35_999, "min", 599.983), (36_000, "h", 10), (54 * 86_400, "days", 54)],
)
def test_the_unit_follows_the_length_of_the_run(seconds: int, unit: str, end: float) -> None:
    on = clock(7 * S, (7 + seconds) * S)
    assert on.unit == unit
    assert on.at(7 * S) == 0
    assert on.at((7 + seconds) * S) == pytest.approx(end, abs=1e-3)
