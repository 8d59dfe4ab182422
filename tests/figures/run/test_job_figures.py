"""The job's time, its faults and its hardware, on one clock."""

import pytest

from traincope.analysis import Fault, FaultKind, Goodput
from traincope.figures.run.faults import fault_timeline
from traincope.figures.run.goodput import goodput_bars
from traincope.figures.steps.hardware import hardware_over_time
from traincope.palette import GREY, SEVERE, colour
from traincope.store import Attempt

S = 1_000_000_000


def attempt(number: int, began: int, first: int | None, last: int, *, steps: int) -> Attempt:
    return Attempt(
        number=number,
        began_ns=began * S,
        first_step_ns=None if first is None else first * S,
        last_ns=last * S,
        num_steps=steps,
        steps_ns=0,
        kept_steps=None,
        kept_ns=0,
        loaded=False,
        checkpoint_stall_ns=0,
        evaluation_ns=0,
    )


def job(*, lost: int | None = 10) -> Goodput:
    """A job of 100 s: 60 of steps, of which `lost` are lost; 5 startup, 20 restart, 8 checkpoints, 4 evaluation, 3
    other.
    """
    return Goodput(
        attempts=(attempt(0, 1000, 1005, 1050, steps=30), attempt(1, 1060, 1070, 1100, steps=20)),
        elapsed_ns=100 * S,
        steps_done=50,
        steps_ns=60 * S,
        steps_lost=None if lost is None else 5,
        lost_ns=None if lost is None else lost * S,
        reason=None if lost else "it is not known where it went on",
        startup_ns=5 * S,
        restart_ns=20 * S,
        checkpoint_stall_ns=8 * S,
        evaluation_ns=4 * S,
        other_ns=3 * S,
    )


def test_the_whole_job_is_one_bar_of_all_its_parts() -> None:
    bars = [bar for bar in goodput_bars(job()).data if bar.showlegend]
    assert [(bar.name, bar.base[0], bar.x[0]) for bar in bars] == [
        ("productive", 0, 50),
        ("lost", 50, 10),
        ("startup", 60, 5),
        ("restart", 65, 20),
        ("checkpoint stall", 85, 8),
        ("evaluation", 93, 4),
        ("other", 97, 3),
    ]
    assert bars[1].marker.color == colour("lost")
    assert bars[3].customdata[0] == "restart: 20.0 s, 20.0 %"
    assert sum(ns or 0 for ns in job().parts.values()) == 100 * S


def test_attempts_lie_on_the_jobs_clock() -> None:
    figure = goodput_bars(job())
    spans = [(bar.y[0], bar.name, bar.base[0], bar.x[0]) for bar in figure.data if not bar.showlegend]
    assert spans == [
        (1, "startup", 0, 5),
        (1, "productive", 5, 45),
        (2, "restart", 60, 10),
        (2, "productive", 70, 30),
    ]
    assert list(figure.layout.yaxis.ticktext) == ["whole job", "attempt 0", "attempt 1"]


def test_unknown_losses_leave_productive_time_empty() -> None:
    first = next(bar for bar in goodput_bars(job(lost=None)).data if bar.showlegend)
    assert (first.name, first.x[0]) == ("steps", 60)


FAULTS = (
    Fault(kind=FaultKind.CHECKPOINT, at_ns=110 * S, what="checkpoint saved", lasted_ns=2 * S),
    Fault(kind=FaultKind.EXCEPTION, at_ns=150 * S, ranks=(3,), step=7, what="ValueError in <b>a.py</b>", evidence="x"),
    Fault(kind=FaultKind.KILLED, at_ns=151 * S, ranks=(0, 1, 2), what="killed", follows=True),
)


def test_faults_are_red_and_markers_grey_in_one_row_per_kind() -> None:
    figure = fault_timeline(FAULTS, 100 * S, 200 * S)
    assert list(figure.layout.yaxis.ticktext) == ["checkpoint", "exception", "killed"]
    spans, marks, follower, fault = figure.data
    assert (list(spans.base), list(spans.x), list(spans.y)) == ([10.0], [2.0], [0])
    assert (list(marks.x), marks.marker.color) == ([10.0], GREY)
    assert (list(follower.x), list(follower.y)) == ([51.0], [2])
    assert (list(fault.x), list(fault.y), fault.marker.color) == ([50.0], [1], SEVERE)
    assert fault.customdata[0] == "rank 3, step 7<br>ValueError in &lt;b&gt;a.py&lt;/b&gt;<br>x"
    assert list(figure.layout.xaxis.range) == pytest.approx([-2.0, 102.0])


def test_many_events_do_not_hide_a_fault() -> None:
    flood = [Fault(kind=FaultKind.EVENT, at_ns=at * S, what="e") for at in range(3_000)]
    late = Fault(kind=FaultKind.SPIKE, at_ns=9_000 * S, what="loss")
    figure = fault_timeline([*flood, late], 0, 9_000 * S)
    by_name = {trace.name: len(trace.x) for trace in figure.data}
    assert by_name == {"event": 1_999, "fault": 1}


def test_driver_events_have_one_row_per_rank() -> None:
    words = (
        Fault(kind=FaultKind.THROTTLED, at_ns=20 * S, ranks=(5,), what="heat", lasted_ns=3 * S),
        Fault(kind=FaultKind.XID, at_ns=30 * S, ranks=(2,), what="XID 79"),
    )
    figure = hardware_over_time(words, 10 * S, 60 * S)
    assert list(figure.layout.yaxis.ticktext) == ["rank 2", "rank 5"]
    spans, faults = figure.data
    assert (list(spans.y), list(spans.base), list(spans.x)) == ([1], [10.0], [3.0])
    assert (list(faults.x), list(faults.y)) == ([10.0, 20.0], [1, 0])
