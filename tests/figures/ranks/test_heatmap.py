"""Heatmap of ranks x steps: the worst rank is visible for any number of ranks."""

import numpy as np
from numpy.typing import NDArray

from traincope.analysis import OwnWork
from traincope.figures.ranks.heatmap import rank_heatmap


def work(excess: NDArray[np.float64], *, hosts: list[str]) -> OwnWork:
    ranks, steps = excess.shape
    return OwnWork(
        ranks=tuple(range(ranks)),
        hosts=tuple(hosts),
        steps=np.arange(10, 10 + steps),
        own_ns=100e6 * (1 + excess),
        excess_ratio=excess,
    )


def test_few_ranks_have_one_row_each() -> None:
    excess = np.array([[0.0, 0.5], [-0.1, np.nan]])
    figure = rank_heatmap(work(excess, hosts=["a", "a"]))
    (cells,) = figure.data
    assert np.array_equal(cells.z, excess, equal_nan=True)
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1"]
    assert list(cells.x) == [10, 11]
    assert cells.text[0][1] == "rank 0, step 11<br>own work 150.00 ms, 50.0 % more than its peers"
    assert cells.customdata[0][1] == "11 0"
    assert cells.text[1][0] == "rank 1, step 10<br>own work 90.00 ms, 10.0 % less than its peers"
    assert (cells.text[1][1], cells.customdata[1][1]) == ("no complete step", None)


def test_many_ranks_are_drawn_by_host_with_the_worst_rank() -> None:
    """128 ranks on 16 hosts; rank 77 is 80 % over its peers in one step of 480, which share 240 columns."""
    excess = np.zeros((128, 480))
    excess[77, 333] = 0.8
    figure = rank_heatmap(work(excess, hosts=[f"host-{rank // 8}" for rank in range(128)]))
    (cells,) = figure.data
    assert cells.z.shape == (16, 240)
    assert cells.z[9, 166] == 0.8
    assert cells.z.sum() == 0.8
    assert figure.layout.yaxis.ticktext[9] == "host-9"
    assert cells.text[9][166].startswith("rank 77, step 343<br>own work 180.00 ms")
    assert cells.text[9][166].endswith("worst of 16 in this cell")
    assert cells.customdata[9][166] == "343 77"


def test_thousands_on_one_host_fold_by_neighbours() -> None:
    excess = np.zeros((4096, 3))
    excess[4095, 2] = 0.3
    (cells,) = rank_heatmap(work(excess, hosts=["one"] * 4096)).data
    assert cells.z.shape == (64, 3)
    assert cells.z[63, 2] == 0.3


def test_a_hosts_name_is_text() -> None:
    names = [f"<i>{rank // 2:03}</i>" for rank in range(100)]
    figure = rank_heatmap(work(np.zeros((100, 1)), hosts=names))
    assert figure.layout.yaxis.ticktext[0] == "&lt;i&gt;000&lt;/i&gt;"
