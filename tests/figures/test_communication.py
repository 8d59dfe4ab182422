"""The icicle of operations and the matrix of waits."""

import numpy as np
import plotly.graph_objects as go

from tests.report.example import MS, analysis
from traincope.analysis import Called, GroupWait
from traincope.figures.icicle import communication_difference, communication_icicle
from traincope.figures.sent import boxes, without_places
from traincope.figures.timeline import class_colour
from traincope.figures.wait_matrix import wait_matrix
from traincope.palette import colour


def paths(icicle: go.Icicle) -> dict[str, int]:
    """Names from the outermost box to each -> where it is among the boxes."""
    name = dict(zip(icicle.ids, icicle.labels, strict=True))
    parent = dict(zip(icicle.ids, icicle.parents, strict=True))

    def path(key: str) -> str:
        return "/".join(filter(None, [parent[key] and path(parent[key]), name[key]]))

    return {path(key).removeprefix("communication").lstrip("/"): at for at, key in enumerate(icicle.ids)}


def test_operations_are_split_into_waiting_exposed_and_hidden_transfer() -> None:
    """Of 6 rank steps. pp send: 18 ms exposed transfer. fsdp all_gather: 15 ms waiting, 6 ms hidden."""
    (icicle,) = communication_icicle(without_places(analysis().comm), rank_steps=6).data
    at = paths(icicle)
    assert {path: icicle.values[number] for path, number in at.items()} == {
        "": 6.5 * MS,
        "fsdp": 3.5 * MS,
        "fsdp/all_gather": 3.5 * MS,
        "fsdp/all_gather/wait": 2.5 * MS,
        "fsdp/all_gather/hidden transfer": 1 * MS,
        "pp": 3 * MS,
        "pp/send": 3 * MS,
        "pp/send/exposed transfer": 3 * MS,
    }
    assert icicle.marker.colors[at["fsdp/all_gather/wait"]] == colour("exposed_wait[fsdp]")
    assert icicle.marker.colors[at["pp/send/exposed transfer"]] == colour("exposed_transfer[pp]")


def test_between_an_operation_and_its_parts_is_where_it_was_called_the_longest_first() -> None:
    """Of 2 rank steps; what is known of some calls alone says so of the others."""
    calls = [
        Called("tp", "all_reduce", "", 4, 0, 4),
        Called("tp", "all_reduce", "forward <b>0", 14, 6, 20),
        Called("tp", "broadcast", "", 2, 0, 0),
    ]
    (icicle,) = communication_icicle(calls, rank_steps=2).data
    assert {path: icicle.values[number] for path, number in paths(icicle).items()} == {
        "": 13,
        "tp": 13,
        "tp/all_reduce": 12,
        "tp/all_reduce/forward &lt;b&gt;0": 10,
        "tp/all_reduce/forward &lt;b&gt;0/wait": 3,
        "tp/all_reduce/forward &lt;b&gt;0/exposed transfer": 7,
        "tp/all_reduce/nothing recorded around it": 2,
        "tp/all_reduce/nothing recorded around it/exposed transfer": 2,
        "tp/broadcast": 1,
        "tp/broadcast/nothing recorded around it": 1,
        "tp/broadcast/nothing recorded around it/hidden transfer": 1,
    }


def test_of_many_places_the_shortest_are_one() -> None:
    calls = [Called("fsdp", "all_gather", f"forward layers.{at}", 10 * at, 0, 0) for at in range(1, 21)]
    at = paths(communication_icicle(calls, rank_steps=1).data[0])
    places = [path.split("/")[2] for path in at if path.count("/") == 2]
    assert places == [f"forward layers.{number}" for number in range(20, 4, -1)] + ["4 places more"]


def test_two_ranks_differ_in_colour_and_have_the_mean_of_their_lengths() -> None:
    """10 and 4 of waiting a step, 6 and 6 of transfer, and an operation that only the second calls."""
    first = [Called("fsdp", "all_gather", "F", 12, 20, 32)]
    second = [Called("fsdp", "all_gather", "F", 18, 12, 30), Called("fsdp", "reduce_scatter", "B", 6, 0, 6)]
    (icicle,) = communication_difference(first, second, rank_steps=(2, 3), names=("rank 3", "rank 5")).data
    told = {path: (icicle.values[at], icicle.marker.colors[at]) for path, at in paths(icicle).items()}
    assert told == {
        "": (14, 4),
        "fsdp": (14, 4),
        "fsdp/all_gather": (13, 6),
        "fsdp/all_gather/F": (13, 6),
        "fsdp/all_gather/F/wait": (7, 6),
        "fsdp/all_gather/F/exposed transfer": (6, 0),
        "fsdp/reduce_scatter": (1, -2),
        "fsdp/reduce_scatter/B": (1, -2),
        "fsdp/reduce_scatter/B/exposed transfer": (1, -2),
    }
    assert (icicle.marker.cmin, icicle.marker.cmax) == (-6, 6)
    assert list(icicle.customdata[paths(icicle)["fsdp/all_gather/F/wait"]]) == ["6 ns more", "10 ns", "4 ns"]


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


def test_waiting_for_another_stage_has_the_colour_of_the_bubble_as_on_the_timeline() -> None:
    (wait,) = (box for box in boxes([Called("pp", "recv", "", 0, 6, 6)], rank_steps=[1]) if box.name == "wait")
    assert wait.colour == class_colour("exposed_wait[pp]") == colour("bubble.schedule")
