"""Folded stacks: every ns of complete steps occurs once."""

import pytest

from tests.exporters.runs import forward, gather, two_ranks
from tests.timeline.build import Row, phase, rank, timeline
from traincope import analyze, open_run
from traincope.errors import RunDirectoryError
from traincope.events import Kind, Phase
from traincope_exporters.traces.folded import folded


def test_stacks_sum_to_the_steps() -> None:
    """6000 in total: 4 x 100 transfer, 2 x 200 wait, 2 x (300 + 500) forward; the rest is unattributed."""
    assert list(folded(two_ranks())) == [
        "own;forward GPT 1600\n",
        "tp;all_gather;transfer 400\n",
        "tp;all_gather;wait 400\n",
        "unattributed 3600\n",
    ]


def test_a_call_is_listed_under_its_caller() -> None:
    inner = phase(Phase.GC, 1150, 1160, at=1)
    lines = dict(line.rsplit(" ", 1) for line in folded(two_ranks(inner)))
    assert lines["own;forward GPT;gc"] == "10\n"
    assert lines["own;forward GPT"] == "1590\n"


def test_time_outside_of_steps_is_left_out() -> None:
    after = (forward(3100, 3300, at=3), *gather(3300, 3900, at=3))
    assert list(folded(two_ranks(*after))) == list(folded(two_ranks()))


def test_a_name_cannot_make_frames_or_lines() -> None:
    hostile = Row(kind=Kind.PHASE, start_ns=2800, end_ns=2810, name="a;b\nc 7\ud800", phase=Phase.FORWARD, step=2)
    assert "own;forward a,b c 7  10\n" in list(folded(two_ranks(hostile)))


def test_the_stacks_of_the_demo_sum_to_its_steps() -> None:
    timeline = open_run("sample_runs/demo")
    total = sum(int(line.rpartition(" ")[2]) for line in folded(timeline))
    assert total == sum(step.length_ns for rank in timeline.ranks for step in rank.steps)


def test_waits_in_the_demo_agree_with_the_report() -> None:
    """The report excludes the first step. The stacks include it."""
    analysis = analyze(open_run("sample_runs/demo"))
    lines = dict(line.rstrip().rsplit(" ", 1) for line in folded(analysis.timeline))
    reported = {(row.axis, row.operation): row.wait_ns for row in analysis.comm}
    for axis, operation in (("fsdp", "all_gather"), ("fsdp", "reduce_scatter"), ("world", "all_reduce")):
        assert int(lines[f"{axis};{operation};wait"]) >= reported[axis, operation] > 0


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(RunDirectoryError, match="holds no complete step"):
        list(folded(timeline(rank(0, phase(Phase.FORWARD, 0, 10)))))
