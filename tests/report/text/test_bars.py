from hypothesis import given
from hypothesis import strategies as st

from traincope.report.text.bars import bar


def test_a_bar_is_an_eighth_of_a_cell_fine() -> None:
    assert bar(0.5, width=4) == "██"
    assert bar(0.53125, width=4) == "██▏"
    assert bar(1.0, width=4) == "████"


def test_zero_and_negative_bars_are_empty() -> None:
    assert bar(0.0, width=4) == bar(-0.3, width=4) == ""


def test_the_smallest_share_is_visible() -> None:
    assert bar(1e-9, width=10) == "▏"
    assert bar(1e-9, width=10, ascii_only=True) == "#"


def test_ascii_bars_are_whole_cells() -> None:
    assert bar(0.5, width=10, ascii_only=True) == "#####"


@given(st.floats(allow_nan=False), st.integers(min_value=1, max_value=200), st.booleans())
def test_a_bar_never_leaves_its_column(ratio: float, width: int, ascii_only: bool) -> None:
    assert len(bar(ratio, width=width, ascii_only=ascii_only)) <= width
