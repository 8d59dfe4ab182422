"""Boxes and gaps of a pipeline's step, recorded above and in theory below."""

from dataclasses import replace

from tests.analysis.pipeline.test_gaps import gpipe
from tests.report.example import analysis
from traincope.analysis import Schedule, recorded_schedule, theoretical_schedule
from traincope.figures.ranks.schedule import pipeline_schedule
from traincope.palette import ACTIONS, colour
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.schedule import TimedAction, Timetable
from traincope.report.document.document import to_document
from traincope.report.sections.pipeline import TOO_LARGE, pipeline
from traincope.report.sections.section import Drawing, Lines, On
from traincope.report.sections.source import Source

MS = 1_000_000


def scaled(table: Timetable) -> Timetable:
    """The schedule with units of 1 ms."""
    rows = {
        rank: tuple(TimedAction(r.action, r.start * MS, r.end * MS) for r in row) for rank, row in table.rows.items()
    }
    return Timetable(rows=rows, span=table.span * MS)


def test_every_action_is_a_box_and_every_gap_is_named() -> None:
    """Stage 1 takes twice as long; see `tests.analysis.pipeline.test_gaps` for the gaps on paper."""
    table = scaled(gpipe(second=20))
    recorded = recorded_schedule(table)
    assert recorded is not None
    figure = pipeline_schedule(recorded, theoretical_schedule(table))
    above = {trace.name: trace for trace in figure.data if trace.yaxis == "y"}
    below = {trace.name: trace for trace in figure.data if trace.yaxis == "y2"}
    assert list(above) == ["idle: schedule", "idle: imbalance", "F forward", "B backward"]
    forward = above["F forward"]
    assert (list(forward.y), list(forward.base), list(forward.x)) == ([0, 1], [0.0, 10.0], [10.0, 20.0])
    assert list(forward.text) == ["0", "0"]
    assert forward.customdata[1] == "rank 1, stage 1: F0<br>20.00 ms, starts at 10.00 ms"
    uneven = above["idle: imbalance"]
    assert (list(uneven.y), list(uneven.base), list(uneven.x)) == ([0], [40.0], [10.0])
    assert list(below["F forward"].x) == [15.0, 15.0]
    assert "idle: imbalance" not in below
    assert list(figure.layout.yaxis.ticktext) == ["rank 0", "rank 1"]


def test_further_stages_of_a_rank_are_marked_by_primes() -> None:
    row = tuple(TimedAction(Action("F", stage, 5), at * MS, (at + 1) * MS) for at, stage in enumerate((1, 3, 6)))
    schedule = Schedule(timetable=Timetable(rows={0: row}, span=3 * MS), gaps={})
    (boxes,) = pipeline_schedule(schedule, None).data
    assert list(boxes.text) == ["5", "5'", "5''"]


def test_each_colour_has_one_meaning_and_each_name_one_legend_entry() -> None:
    table = scaled(gpipe(late=5))
    recorded = recorded_schedule(table)
    assert recorded is not None
    traces = pipeline_schedule(recorded, theoretical_schedule(table)).data
    assert [trace.name for trace in traces if trace.showlegend] == list(dict.fromkeys(trace.name for trace in traces))
    by_name = {trace.name: trace.marker for trace in traces}
    assert by_name["F forward"].color == ACTIONS["F"]
    assert by_name["idle: schedule"].pattern.fgcolor == colour("bubble.schedule")
    assert by_name["idle: jitter and transfers"].pattern.fgcolor == colour("bubble.jitter")


def test_a_step_with_too_many_actions_is_not_drawn() -> None:
    row = tuple(TimedAction(Action("F", 0, at), at, at + 1) for at in range(4_001))
    result = analysis()
    assert result.bubble is not None
    many = replace(result, bubble=replace(result.bubble, timetable=Timetable(rows={0: row}, span=4_001)))
    parts = pipeline(Source(analysis=many, document=to_document(many))).on_screens
    assert Lines((TOO_LARGE,), on=On.SCREEN) in parts
    assert not any(isinstance(part, Drawing) for part in parts)
