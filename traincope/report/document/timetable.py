"""A pipeline's timetable in the document."""

from traincope.plan.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from traincope.plan.pipeline.schedule import Timetable
from traincope.report import schema

MAX_RANKS, MAX_ACTIONS = 16, 256
"""Largest timetable that is written: ranks, and actions per rank. No drawing has room for a larger one."""
KINDS = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)


def timetable_rows(timetable: Timetable | None) -> list[schema.TimetableRow] | None:
    """One row per rank with its actions in order; None if it is too large to draw or an action's name was lost."""
    if timetable is None or len(timetable.rows) > MAX_RANKS or max(map(len, timetable.rows.values())) > MAX_ACTIONS:
        return None
    if any(ran.action.kind not in KINDS for row in timetable.rows.values() for ran in row):
        return None
    return [
        schema.TimetableRow(rank=rank, actions=[schema.convert(ran, schema.ActionTime) for ran in row])
        for rank, row in timetable.rows.items()
    ]
