"""Choice of the shown lanes and ranks."""

from itertools import pairwise

from traincope.figures.run.arrangement import MAX_LINES, arranged, lanes_of
from traincope.tiles.storage import Header, Row


def header(ranks: int, *lanes: str) -> Header:
    rows = tuple(
        Row(
            rank=rank,
            lane=lane,
            lines=1,
            first_span=0,
            num_spans=0,
            first_piece=0,
            num_pieces=0,
            first_channel=0,
            classes=(),
        )
        for rank in range(ranks)
        for lane in lanes
    )
    return Header(origin_ns=0, length_ns=100, rows=rows)


def test_a_few_ranks_show_all_lanes_in_their_order() -> None:
    arrangement = arranged(header(2, "host", "comm tp", "comm fsdp", "activity", "steps"))
    assert [(line.ranks, line.lane) for line in arrangement.lines][:5] == [
        ((0,), "steps"),
        ((0,), "activity"),
        ((0,), "comm fsdp"),
        ((0,), "comm tp"),
        ((0,), "host"),
    ]
    assert arrangement.name(arrangement.lines[0]) == "rank 0, steps"
    assert [arrangement.tick(at) for at in (0, 1, 5)] == ["rank 0, steps", "activity", "rank 1, steps"]


def test_many_ranks_have_one_activity_line_each() -> None:
    arrangement = arranged(header(9, "steps", "activity", "compute"))
    assert [(line.ranks, line.lane) for line in arrangement.lines] == [((rank,), "activity") for rank in range(9)]
    assert arrangement.tick(3) == "rank 3"


def test_too_many_ranks_fold_with_their_neighbours() -> None:
    arrangement = arranged(header(1024, "activity"))
    assert len(arrangement.lines) <= MAX_LINES
    assert arrangement.lines[0].ranks == (0, 1, 2)
    assert sum(len(line.rows) for line in arrangement.lines) == 1024
    assert arrangement.name(arrangement.lines[0]) == "ranks 0-2"


def test_only_chosen_ranks_and_lanes_are_shown() -> None:
    arrangement = arranged(header(20, "steps", "activity", "compute"), ranks=[3, 99], lanes=["compute"])
    assert [(line.ranks, line.lane) for line in arrangement.lines] == [((3,), "compute")]
    assert arranged(header(2, "steps"), ranks=[7]).lines == ()


def test_lines_lie_below_each_other_without_overlap() -> None:
    arrangement = arranged(header(3, "steps", "activity"))
    borders = [(line.top, line.top + line.height) for line in arrangement.lines]
    assert all(end <= start for (_, end), (start, _) in pairwise(borders))


def test_lanes_are_listed_once() -> None:
    assert lanes_of(header(3, "spans", "gpu 0, stream 7", "steps")) == ("steps", "spans", "gpu 0, stream 7")
