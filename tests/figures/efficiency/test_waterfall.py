"""The waterfall: each bar begins at the end of the previous one, and the last bar is the remainder."""

import pytest

from traincope.figures.efficiency.waterfall import waterfall
from traincope.palette import colour

SHARES = {
    "ideal": 0.5,
    "redundant_compute": None,
    "optimizer": 0.1,
    "bubble.jitter": -0.05,
    "gc": 0.0,
    "unattributed": 0.45,
}


def test_from_peak_to_mfu() -> None:
    """1 - 0.1 = 0.9; jitter of -0.05 goes back up to 0.95; 0.95 - 0.45 = 0.5."""
    figure = waterfall(SHARES, step_ns=2_000_000)
    (bars,) = figure.data
    assert list(figure.layout.yaxis.ticktext) == ["peak", "optimizer", "bubble.jitter", "unattributed", "MFU"]
    assert list(bars.x) == [1.0, 0.1, -0.05, 0.45, 0.5]
    assert list(bars.base) == pytest.approx([0.0, 0.9, 0.95, 0.5, 0.0])
    assert list(bars.text) == ["100.0 %", "10.0 %", "-5.0 %", "45.0 %", "50.0 %"]
    assert list(bars.customdata[1]) == ["optimizer", "10.0 %", "0.20", "optimizer"]
    assert [data[3] for data in bars.customdata] == [None, "optimizer", "bubble.jitter", "unattributed", "ideal"]


def test_every_term_has_its_own_colour() -> None:
    (bars,) = waterfall(SHARES, step_ns=1).data
    assert list(bars.marker.color)[1:] == [colour(t) for t in ("optimizer", "bubble.jitter", "unattributed", "ideal")]


def test_without_a_peak_it_ends_at_forward_and_backward() -> None:
    figure = waterfall({"forward": 0.3, "backward": 0.5, "data_wait": 0.2}, step_ns=1)
    (bars,) = figure.data
    assert list(figure.layout.yaxis.ticktext) == ["step", "data_wait", "forward", "backward"]
    assert list(bars.base) == pytest.approx([0.0, 0.8, 0.0, 0.3])


def test_a_hostile_axis_name_is_text() -> None:
    figure = waterfall({"forward": 0.5, "exposed_wait[<b>x</b>]": 0.5}, step_ns=1)
    assert figure.layout.yaxis.ticktext[1] == "exposed_wait[&lt;b&gt;x&lt;/b&gt;]"
