"""Memory, logged values and GPU samples over steps."""

import numpy as np

from traincope.analysis import Samples
from traincope.analysis.efficiency.samples import names_to_draw
from traincope.figures.steps.gpu_samples import gpu_sample_curves
from traincope.figures.steps.loss_curves import logged_curves
from traincope.figures.steps.memory import memory_over_steps

MIB = 1 << 20


def series(rank: int, name: str, *values: float, first: int = 0) -> Samples:
    return Samples(
        rank=rank, name=name, steps=np.arange(first, first + len(values)), values=np.array(values, dtype=np.float64)
    )


def test_a_measure_is_drawn_as_maximum_and_band() -> None:
    figure = memory_over_steps(
        [series(0, "resident", 100 * MIB, 300 * MIB), series(1, "resident", 200 * MIB, 200 * MIB, 250 * MIB)]
    )
    low, high = figure.data
    assert low.y.tolist() == [100 * MIB, 200 * MIB, 250 * MIB]
    assert high.y.tolist() == [200 * MIB, 300 * MIB, 250 * MIB]
    assert (high.name, high.fill) == ("resident", "tonexty")
    assert [list(data) for data in high.customdata] == [
        ["rank 1", "200.0 MiB", "100.0 MiB"],
        ["rank 0", "300.0 MiB", "200.0 MiB"],
        ["rank 1", "250.0 MiB", "250.0 MiB"],
    ]
    assert list(figure.layout.yaxis.ticktext) == [f"{size}.0 MiB" if size else "0 B" for size in range(0, 384, 64)]


def test_a_peak_between_two_steps_is_not_lost_when_they_share_a_point() -> None:
    """800 steps, 400 points."""
    held = [float(MIB)] * 800
    held[501] = 9.0 * MIB
    _, high = memory_over_steps([series(0, "allocated", *held)]).data
    assert len(high.y) == 400
    assert high.y[250] == 9 * MIB


def test_a_curve_is_the_mean_over_the_logging_ranks() -> None:
    figure = logged_curves([series(0, "loss", 4.0, 2.0), series(1, "loss", 2.0, 2.0, 1.0)])
    (line,) = figure.data
    assert (line.x.tolist(), line.y.tolist()) == ([0, 1, 2], [3.0, 2.0, 1.0])
    assert figure.layout.yaxis.title.text == "loss"


def test_non_finite_values_are_marked_and_excluded_from_means() -> None:
    line, marks = logged_curves([series(0, "loss", 4.0, np.nan, 2.0), series(1, "loss", 2.0, 5.0, np.inf)]).data
    assert line.y.tolist() == [3.0, 5.0, 2.0]
    assert marks.x.tolist() == [1, 2]


def test_losses_come_first_and_few_are_drawn() -> None:
    names = ["lr", "grad_norm", "val_Loss", "a", "b", "loss"]
    assert names_to_draw([series(0, name, 1.0) for name in names]) == ("val_Loss", "loss", "lr", "grad_norm")


def test_each_name_has_a_row_above_the_next() -> None:
    layout = logged_curves([series(0, "loss", 1.0), series(0, "<b>lr</b>", 1.0)]).layout
    assert layout.yaxis.domain[0] > layout.yaxis2.domain[1]
    assert layout.yaxis2.title.text == "&lt;b&gt;lr&lt;/b&gt;"


def test_gpu_samples_are_drawn_as_mean_and_range() -> None:
    """Power is recorded in mW; rank 1's temperature in no step, its power in two of three."""
    read = [
        series(0, "temperature", 60, 70, 65),
        series(0, "power", 500_000, 600_000, 700_000),
        series(1, "power", 300_000, 400_000),
    ]
    figure = gpu_sample_curves(read)
    low, high, mean, *temperature = figure.data
    assert [line.y.tolist() for line in (low, high, mean)] == [[300, 400, 700], [500, 600, 700], [400, 500, 700]]
    assert [list(data) for data in mean.customdata] == [
        ["300", "500", "rank 0"],
        ["400", "600", "rank 0"],
        ["700", "700", "rank 0"],
    ]
    assert [line.y.tolist() for line in temperature] == [[60, 70, 65]] * 3
    assert [axis.title.text for axis in figure.select_yaxes()] == ["power, W", "temperature, °C"]
