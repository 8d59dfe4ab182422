"""The icicle of operations and the matrix of waits."""

import numpy as np
import pytest

from tests.report.example import MS, analysis
from traincope.analysis import GroupWait
from traincope.figures.icicle import communication_icicle
from traincope.figures.wait_matrix import wait_matrix
from traincope.palette import colour


def test_operations_are_split_into_waiting_exposed_and_hidden_transfer() -> None:
    """Of 6 rank steps. pp send: 18 ms exposed transfer. fsdp all_gather: 15 ms waiting, 6 ms hidden."""
    (icicle,) = communication_icicle(analysis().comm, rank_steps=6).data
    sizes = dict(zip(icicle.ids, icicle.values, strict=True))
    assert sizes == pytest.approx(
        {
            "all": 6.5 * MS,
            "0": 3 * MS,
            "0.0": 3 * MS,
            "0.0.exposed transfer": 3 * MS,
            "1": 3.5 * MS,
            "1.0": 3.5 * MS,
            "1.0.wait": 2.5 * MS,
            "1.0.hidden transfer": 1 * MS,
        }
    )
    names = dict(zip(icicle.ids, icicle.labels, strict=True))
    assert (names["0"], names["0.0"], names["1.0.wait"]) == ("pp", "send", "wait")
    painted = dict(zip(icicle.ids, icicle.marker.colors, strict=True))
    assert painted["1.0.wait"] == colour("exposed_wait[fsdp]")
    assert painted["0.0.exposed transfer"] == colour("exposed_transfer[pp]")


def test_every_part_is_as_long_as_what_it_holds() -> None:
    (icicle,) = communication_icicle(analysis().comm, rank_steps=6).data
    for key, size in zip(icicle.ids, icicle.values, strict=True):
        inside = [v for v, parent in zip(icicle.values, icicle.parents, strict=True) if parent == key]
        assert not inside or sum(inside) == pytest.approx(size)


def test_waits_by_group_and_rank() -> None:
    """Rank 1 is in no tp group, rank 3's records are missing; 4 steps."""
    groups = (
        GroupWait(axis="fsdp", ranks=(0, 1, 2), waits_ns=(8 * MS, 0, 4 * MS)),
        GroupWait(axis="tp", ranks=(2, 3), waits_ns=(20 * MS, None)),
    )
    figure = wait_matrix(groups, steps=4)
    (cells,) = figure.data
    assert list(figure.layout.yaxis.ticktext) == ["fsdp: 0-2", "tp: 2, 3"]
    assert list(cells.x) == ["0", "1", "2", "3"]
    assert np.array_equal(cells.z, [[2.0, 0.0, 1.0, np.nan], [np.nan, np.nan, 5.0, np.nan]], equal_nan=True)


def test_of_many_groups_those_with_most_waiting_are_shown_in_order() -> None:
    groups = [GroupWait(axis="tp", ranks=(2 * at, 2 * at + 1), waits_ns=(at * MS, 0)) for at in range(60)]
    names = wait_matrix(groups, steps=1).layout.yaxis.ticktext
    assert (names[0], names[-1], len(names)) == ("tp: 24, 25", "tp: 116, 117", 24)


def test_of_ranks_that_share_a_column_the_one_that_waited_longest_shows() -> None:
    """256 ranks in 128 columns; rank 101 waited 7 ms a step, all others 1 ms."""
    waits = tuple(14 * MS if rank == 101 else 2 * MS for rank in range(256))
    (cells,) = wait_matrix([GroupWait(axis="dp", ranks=tuple(range(256)), waits_ns=waits)], steps=2).data
    assert (len(cells.x), cells.x[50]) == (128, "100-101")
    assert cells.z[0, 50] == 7.0
    assert cells.z[0].sum() == 127 + 7
