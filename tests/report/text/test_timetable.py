"""Steps of pipelines drawn in text: as wide as their boxes need, or not at all."""

import io

from rich.console import Console

from traincope.plan.pipeline.actions import Action, Times
from traincope.plan.pipeline.orders import Shape, orders
from traincope.plan.pipeline.schedule import TimedAction, Timetable, timetable
from traincope.report.text.timetable import Drawing


def drawn(drawing: Drawing, *, width: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width).print(drawing)
    file.seek(0)
    return [line.rstrip() for line in file.read().splitlines()]


def gpipe(ranks: int = 2, microbatches: int = 2) -> Timetable:
    return timetable(orders("gpipe", Shape(ranks=ranks, microbatches=microbatches)))


def test_boxes_are_as_wide_as_their_names_and_a_blank() -> None:
    assert drawn(Drawing(timetable=gpipe()), width=80) == [
        "    0 F0 F1 ·········B0    B1     33.3 %",
        "    1 ···F0 F1 B0    B1    ······ 33.3 %",
        "    F forward, B backward; left: rank; right: its idle share",
    ]


def test_with_less_room_they_are_narrower_and_then_without_numbers() -> None:
    drawing = Drawing(timetable=gpipe(), min_columns=1)
    assert drawn(drawing, width=35)[0] == "    0 F0F1······B0  B1   33.3 %"
    assert drawn(drawing, width=25)[0] == "    0 FF···B0B1 33.3 %"


def test_with_too_little_room_for_names_nothing_is_drawn() -> None:
    drawing = Drawing(timetable=gpipe())
    assert drawing.min_width == 31
    assert len(drawn(drawing, width=31)) > 1
    assert drawn(drawing, width=30) == []


def test_more_ranks_or_columns_than_the_limit_are_not_drawn() -> None:
    assert drawn(Drawing(timetable=gpipe(ranks=3), max_ranks=2), width=200) == []
    assert drawn(Drawing(timetable=gpipe(), max_columns=30), width=200) == []


def test_half_a_number_is_never_shown() -> None:
    many = Drawing(timetable=gpipe(ranks=1, microbatches=11))
    assert drawn(many, width=80)[0].startswith("    0 F0F1F2F3F4F5F6F7F8F9F B0  B1  ")


def test_every_second_stage_of_a_rank_has_small_letters() -> None:
    rows = drawn(Drawing(timetable=timetable(orders("zb-v", Shape(ranks=1, microbatches=1, chunks=2)))), width=80)
    assert rows[0] == "    0 F0 f0 i0 w0 I0 W0   0.0 %"
    assert rows[1].startswith("    F forward, I backward for inputs, W backward for weights, lower case: every")


def test_an_output_that_cannot_carry_dots_gets_points() -> None:
    assert (
        drawn(Drawing(timetable=gpipe()), width=80, encoding="ascii")[1] == "    1 ...F0 F1 B0    B1    ...... 33.3 %"
    )


def test_actions_that_took_no_time_have_no_box() -> None:
    """torch's I on the first stage takes no time, because it leaves the work to W."""
    row = (
        TimedAction(Action("F", 0, 0), 0, 10),
        TimedAction(Action("I", 0, 0), 10, 10),
        TimedAction(Action("W", 0, 0), 10, 20),
    )
    assert drawn(Drawing(timetable=Timetable(rows={0: row}, span=20)), width=80)[0] == "    0 F0 W0   0.0 %"


def test_longer_actions_have_longer_boxes() -> None:
    planned = timetable(orders("1f1b", Shape(ranks=1, microbatches=1)), Times(forward=2, backward_input=3))
    assert drawn(Drawing(timetable=planned), width=80)[0] == "    0 F0 B0      0.0 %"
