"""Drawing the critical path of one step: a box for each interval on a rank, and lines from rank to rank."""

from traincope.analysis import Segment, StepPath
from traincope.figures.drawing.canvas import height_of
from traincope.figures.ranks.critical_path import critical_path_step
from traincope.palette import colour

MS = 1_000_000
STEP = StepPath(
    number=3,
    segments=(
        Segment(rank=0, term="forward", start_ns=5 * MS, end_ns=7 * MS),
        Segment(rank=2, term="backward", start_ns=7 * MS, end_ns=10 * MS),
        Segment(rank=0, term="forward", start_ns=10 * MS, end_ns=11 * MS),
    ),
    untold_ns=0,
)


def test_boxes_lie_on_the_ranks_of_the_path_from_the_steps_begin() -> None:
    forward, backward, course = critical_path_step(STEP).data
    assert (list(forward.base), list(forward.x), list(forward.y)) == ([0, 5], [2, 1], [0, 0])
    assert (list(backward.base), list(backward.x), list(backward.y)) == ([2], [3], [1])
    assert (forward.marker.color, backward.marker.color) == (colour("forward"), colour("backward"))
    assert (list(course.x), list(course.y)) == ([0, 2, 5], [0, 1, 0])


def test_one_row_of_one_term_leaves_room_for_the_axis_title_below_its_numbers() -> None:
    alone = StepPath(number=3, segments=STEP.segments[:1], untold_ns=0)
    assert critical_path_step(alone).layout.height == height_of(1, legend_lines=2) == 130
