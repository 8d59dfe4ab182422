"""The pipeline schedule of a searched layout, in few enough boxes to draw."""

from typing import NamedTuple

from traincope.plan.pipeline.actions import EQUAL, Times
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import Timetable, timetable
from traincope.plan.pipeline.stage_layers import relative_work, stage_layers
from traincope.plan.search.answer import Ranked

MAX_BOXES = 1_600
"""A page with more boxes is slow to draw."""
ACTIONS = 3
"""Most actions of one microbatch on one stage: F, I and W."""


class DrawnSchedule(NamedTuple):
    timetable: Timetable
    """In ns."""
    microbatches: int
    """Microbatches of the drawing; a layout with more is drawn with these."""


def drawn_schedule(ranked: Ranked, *, layers: int) -> DrawnSchedule | None:
    """The timetable that gives the layout its bubble, or that of fewer microbatches; None if it is too large.

    F, I and W of a layer take equal times, as in the prediction.
    """
    stages = ranked["pp"] * ranked["virtual"]
    most = min(ranked["microbatches"], MAX_BOXES // (ACTIONS * stages))
    for microbatches in range(most, ranked["pp"] // 2, -1):
        shape = Shape(ranks=ranked["pp"], microbatches=microbatches, chunks=ranked["virtual"])
        if SCHEDULES[ranked["schedule"]].refusal(shape) is None:
            return DrawnSchedule(_timetable(ranked, shape, layers=layers), microbatches)
    return None


def _timetable(ranked: Ranked, shape: Shape, *, layers: int) -> Timetable:
    pipeline_seconds = ranked["step_seconds"] - ranked["parts"].get("exposed dp", 0.0)
    busy_ns = pipeline_seconds * (1 - ranked["bubble_ratio"]) * 1e9
    each = busy_ns / (ranked["microbatches"] * ranked["virtual"] * EQUAL.total)
    work = relative_work(stage_layers(layers, schedule=ranked["schedule"], shape=shape))
    planned = timetable(
        orders(ranked["schedule"], shape),
        Times(forward=each, backward_input=each, backward_weight=each),
        work=work,
    )
    return _in_ns(planned)


def _in_ns(planned: Timetable) -> Timetable:
    """The same timetable with whole ns as ticks."""
    rows = {
        rank: tuple(
            ran._replace(start=round(ran.start / planned.ticks), end=round(ran.end / planned.ticks)) for ran in row
        )
        for rank, row in planned.rows.items()
    }
    return Timetable(rows=rows, span=round(planned.span / planned.ticks))
