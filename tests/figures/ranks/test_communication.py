"""The icicle of operations and the matrix of waits."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from tests.report.example import MS, analysis
from traincope.analysis import CallSite, GroupWait, without_places
from traincope.figures.drawn import DRAWN
from traincope.figures.ranks.communication_tree import boxes
from traincope.figures.ranks.icicle import communication_difference, communication_icicle
from traincope.figures.ranks.wait_matrix import wait_matrix
from traincope.figures.run.timeline import class_colour
from traincope.palette import colour
from traincope.report.document.document import to_document
from traincope.report.sections.communication import communication
from traincope.report.sections.section import Drawing
from traincope.report.sections.source import Source


def paths(icicle: go.Icicle) -> dict[str, int]:
    """Path from the outermost box -> position among the boxes."""
    name = dict(zip(icicle.ids, icicle.labels, strict=True))
    parent = dict(zip(icicle.ids, icicle.parents, strict=True))

    def path(key: str) -> str:
        return "/".join(filter(None, [parent[key] and path(parent[key]), name[key]]))

    return {path(key).removeprefix("communication").lstrip("/"): at for at, key in enumerate(icicle.ids)}


def test_operations_are_split_into_wait_exposed_and_hidden_transfer() -> None:
    """Sums of 6 rank-steps. pp send: 18 ms exposed transfer. fsdp all_gather: 15 ms wait, 6 ms hidden."""
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


def test_call_sites_are_below_their_operation_longest_first() -> None:
    """Sums of 2 rank-steps; calls without a call site are marked as unknown."""
    calls = [
        CallSite("tp", "all_reduce", "", 4, 0, 4),
        CallSite("tp", "all_reduce", "forward <b>0", 14, 6, 20),
        CallSite("tp", "broadcast", "", 2, 0, 0),
    ]
    (icicle,) = communication_icicle(calls, rank_steps=2).data
    assert {path: icicle.values[number] for path, number in paths(icicle).items()} == {
        "": 13,
        "tp": 13,
        "tp/all_reduce": 12,
        "tp/all_reduce/forward &lt;b&gt;0": 10,
        "tp/all_reduce/forward &lt;b&gt;0/wait": 3,
        "tp/all_reduce/forward &lt;b&gt;0/exposed transfer": 7,
        "tp/all_reduce/call site unknown": 2,
        "tp/all_reduce/call site unknown/exposed transfer": 2,
        "tp/broadcast": 1,
        "tp/broadcast/call site unknown": 1,
        "tp/broadcast/call site unknown/hidden transfer": 1,
    }


def test_the_shortest_call_sites_are_merged() -> None:
    calls = [CallSite("fsdp", "all_gather", f"forward layers.{at}", 10 * at, 0, 0) for at in range(1, 21)]
    at = paths(communication_icicle(calls, rank_steps=1).data[0])
    places = [path.split("/")[2] for path in at if path.count("/") == 2]
    assert places == [f"forward layers.{number}" for number in range(20, 4, -1)] + ["4 more call sites"]


def test_two_ranks_differ_in_colour_and_have_the_mean_of_their_lengths() -> None:
    """Per step 10 and 4 wait, 6 and 6 transfer, and an operation that only the second rank calls."""
    first = [CallSite("fsdp", "all_gather", "F", 12, 20, 32)]
    second = [CallSite("fsdp", "all_gather", "F", 18, 12, 30), CallSite("fsdp", "reduce_scatter", "B", 6, 0, 6)]
    (icicle,) = communication_difference(first, second, rank_steps=(2, 3), names=("rank 3", "rank 5")).data
    by_path = {path: (icicle.values[at], icicle.marker.colors[at]) for path, at in paths(icicle).items()}
    assert by_path == {
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


def test_groups_with_the_most_wait_are_shown() -> None:
    groups = [GroupWait(axis="tp", ranks=(2 * at, 2 * at + 1), waits_ns=(at * MS, 0)) for at in range(60)]
    names = wait_matrix(groups, steps=1).layout.yaxis.ticktext
    assert (names[0], names[-1], len(names)) == ("tp: 24, 25", "tp: 116, 117", 24)


def test_a_shared_column_shows_the_longest_wait() -> None:
    """256 ranks in 128 columns; rank 101 waited 7 ms per step, all others 1 ms."""
    waits = tuple(14 * MS if rank == 101 else 2 * MS for rank in range(256))
    (cells,) = wait_matrix([GroupWait(axis="dp", ranks=tuple(range(256)), waits_ns=waits)], steps=2).data
    assert (len(cells.x), cells.x[50]) == (128, "100-101")
    assert cells.z[0, 50] == 7.0
    assert cells.z[0].sum() == 127 + 7


def test_a_wait_for_another_stage_has_the_bubbles_colour() -> None:
    (wait,) = (box for box in boxes([CallSite("pp", "recv", "", 0, 6, 6)], rank_steps=[1]) if box.name == "wait")
    assert wait.colour == class_colour("exposed_wait[pp]") == colour("bubble.schedule")


def test_the_reports_matrix_has_means_over_the_counted_steps() -> None:
    """Of 9 steps, 3 were recorded in detail: 12 ms of wait are 4 ms per step."""
    waiting = replace(analysis(), group_waits=(GroupWait(axis="dp", ranks=(0, 1), waits_ns=(12 * MS, 0)),))
    document = to_document(waiting)
    document["run"]["steps"] = 9
    parts = communication(Source(analysis=waiting, document=document)).parts
    (drawn,) = [part for part in parts if isinstance(part, Drawing) and part.figure == "waits"]
    (cells,) = DRAWN["waits"](*drawn.of).data
    assert cells.z.tolist() == [[4.0, 0.0]]
