"""Ranks that finish before the others: the others' error follows from that."""

from dataclasses import replace

import pytest

from tests.analysis.faults.test_faults import note, noted
from tests.timeline.build import group, phase, rank, run, step, timeline
from traincope.analysis import analyze
from traincope.events import OPEN, Phase
from traincope.store import RankRecords
from traincope.timeline import Timeline, build_timeline

MS = 1_000_000
DP = group("dp", 0, 1)
STACKS = """Current thread 0x00007f1 (most recent call first):
  File "/home/me/train.py", line 9 in main
"""


def done_early(*, steps: int = 1) -> RankRecords:
    """A rank with a forward in each step, and a clean end."""
    spans = [(step(at, at * 100 * MS, (at + 1) * 100 * MS), at) for at in range(steps)]
    rows = [row for span, at in spans for row in (span, phase(Phase.FORWARD, at * 100 * MS, at * 100 * MS + MS, at=at))]
    return rank(1, *rows, groups=[DP])


def failed_in_step_1(*, ending: str | None = "RuntimeError", signals: dict[str, str] | None = None) -> RankRecords:
    rows = [step(0, 0, 100 * MS), step(1, 100 * MS, OPEN), phase(Phase.FORWARD, 101 * MS, 102 * MS, at=1)]
    records = rank(0, *rows, groups=[DP], ending=ending)
    return replace(records, info=replace(records.info, signals=signals or {}))


def test_a_rank_that_finished_early_is_named_with_the_rank_that_failed() -> None:
    """Rank 0 fails in the next collective as a consequence, whatever the launcher noted."""
    for notes in ((), (note(0, 1, first=True),)):
        verdict = analyze(noted(failed_in_step_1(), done_early(), notes=notes)).verdict[0]
        assert (verdict.ranks, verdict.confidence) == ((0, 1), "medium")
        assert verdict.evidence.startswith("rank 1 ended cleanly after 1 step, the others began 2; of the ")
        assert verdict.advice.startswith("Give every rank the same number of steps: rank 1 finished before the others")


def test_a_rank_that_finished_early_is_named_if_the_others_hung() -> None:
    hung = failed_in_step_1(ending=None, signals={"SIGTERM": STACKS})
    verdict = analyze(noted(hung, done_early(), notes=(note(None, -15, at_s=9),))).verdict[0]
    assert (verdict.kind, verdict.ranks) == ("stopped_job", (1,))


def test_a_rank_that_finished_in_the_same_step_is_not_named() -> None:
    """The other rank fails in work that it does alone after the last step."""
    verdict = analyze(timeline(failed_in_step_1(), done_early(steps=2))).verdict[0]
    assert verdict.ranks == (0,)
    assert verdict.evidence.startswith("rank 0 ended first")


def test_a_rank_without_peers_is_not_called_the_first_of_them() -> None:
    alone = rank(0, step(0, 0, 100 * MS), step(1, 100 * MS, OPEN), ending="RuntimeError")
    verdict = analyze(timeline(alone)).verdict[0]
    assert verdict.evidence.startswith("rank 0 ended: it raised RuntimeError")
    assert verdict.advice == "Read its traceback."


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param(
            noted(failed_in_step_1(ending=None), notes=(note(None, -2, first=True, at_s=9),)), id="a launcher"
        ),
        pytest.param(timeline(failed_in_step_1(ending="KeyboardInterrupt")), id="a rank without a launcher"),
    ],
)
def test_ctrl_c_is_a_stop_by_a_person_and_no_failure(stopped: Timeline) -> None:
    verdict = analyze(stopped).verdict[0]
    assert (verdict.kind, verdict.confidence, verdict.advice) == ("stopped_job", "high", "")
    assert verdict.evidence.startswith("stopped by you, with Ctrl-C, and no rank failed by itself: ")


def test_an_interrupt_of_one_rank_alone_is_no_ctrl_c() -> None:
    """Its launcher ended the other rank by SIGTERM. At Ctrl-C, the launcher itself ends, or passes the signal on."""
    other = rank(1, step(0, 0, 100), step(1, 100, OPEN), ending=None)
    ranks = failed_in_step_1(ending="KeyboardInterrupt"), other
    notes = note(0, -2, first=True), note(1, -15)
    first = analyze(noted(*ranks, notes=notes)).verdict[0]
    assert (first.kind, first.ranks) == ("failed_rank", (0,))
    assert first.advice.startswith("Find who interrupted rank 0 alone")
    by_launcher = analyze(noted(*ranks, notes=(*notes, note(None, -2, at_s=9)))).verdict[0]
    assert by_launcher.kind == "stopped_job"
    passed_on = analyze(noted(*ranks, notes=(notes[0], note(1, -2)))).verdict[0]
    assert passed_on.kind == "stopped_job"


def test_an_error_about_a_signal_is_an_error() -> None:
    failed = failed_in_step_1(ending="SIGINTError")
    assert analyze(timeline(failed)).verdict[0].kind == "failed_rank"


def going_on(*, running: bool | None, read_s: float | None = 2.1) -> Timeline:
    """Two ranks in step 3, with one record more on rank 1; `running`: of their processes; `read_s`: after it."""
    rows = [step(at, at * 100 * MS, (at + 1) * 100 * MS) for at in range(3)] + [step(3, 300 * MS, OPEN)]
    inside = phase(Phase.FORWARD, 310 * MS, OPEN, at=3)
    ranks = [rank(0, *rows, groups=[DP], ending=None), rank(1, *rows, inside, groups=[DP], ending=None)]
    made = run(*(replace(each, running=running) for each in ranks))
    return build_timeline(replace(made, read_wall_ns=None if read_s is None else 310 * MS + round(read_s * 1000) * MS))


@pytest.mark.parametrize(
    ("running", "read_s", "evidence", "confidence"),
    [
        (True, 2.1, "step 3, last record 2.10 s ago", "high"),
        (True, None, "step 3, the time of its last record is unknown", "high"),
        (None, 2.1, "step 3, last record 2.10 s ago; its processes are not seen from this host", "medium"),
        (None, -3.5, "step 3, last record 3.50 s ahead of this host's clock; its processes are not seen", "medium"),
    ],
)
def test_a_running_job_is_said_to_run_and_has_the_verdict_so_far(
    running: bool | None, read_s: float | None, evidence: str, confidence: str
) -> None:
    first, *others = analyze(going_on(running=running, read_s=read_s)).verdict
    assert (first.kind, first.ranks, first.confidence) == ("running", (), confidence)
    assert first.evidence.startswith(evidence)
    assert others
    assert not {"no_end_recorded", "killed_rank"} & {other.kind for other in others}


@pytest.mark.parametrize(("running", "read_s"), [(None, 61.0), (None, None), (False, 2.1)])
def test_without_a_sign_of_life_a_job_is_not_said_to_run(running: bool | None, read_s: float | None) -> None:
    kinds = {finding.kind for finding in analyze(going_on(running=running, read_s=read_s)).verdict}
    assert "running" not in kinds
    assert kinds & {"no_end_recorded", "killed_rank"}
