"""The score of programs from public reports: how it grades, what it covers, and three of the programs."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from evaluation.score.reports import running
from evaluation.score.reports.grading import PARTLY, RIGHT, UNKNOWN, WRONG, Finding, grade, has_changed
from evaluation.score.reports.page import PAGE, first_grades, trial_lines
from evaluation.score.reports.repeated import busy_cores, repeated_lines
from evaluation.score.reports.running import Outcome, judge
from evaluation.score.reports.score import passes
from evaluation.score.reports.truths import HEALTHY, PROGRAMS, Truth, truths
from evaluation.written import written_table
from tests.distributed.selection import swept

OURS = {truth.name: truth for truth in truths() if truth.item != "given"}
ITEMS = "ABCDEFGHIJK"
QUICK = ("segfault_in_decoder", "two_groups", "polls_a_server")


def finding(kind: str = "straggler", ranks: tuple[int, ...] = (1,), **fields: object) -> Finding:
    return {"kind": kind, "ranks": list(ranks), "confidence": "high", "evidence": "", "advice": ""} | fields


def truth(**fields: object) -> Truth:
    return Truth(**{"name": "one", "program": Path("one.py"), "nproc": 2, "ranks": (1,), "words": "save"} | fields)


LOAD = finding("host_shortage", (), evidence="other processes keep 2.0 of its 2 cores busy")
UNSURE = finding("hang", confidence="unknown", evidence="save")


@pytest.mark.parametrize(
    ("verdict", "expected", "known"),
    [
        ([finding(evidence="it saves")], RIGHT, truth()),
        ([finding(evidence="it is late")], PARTLY, truth()),
        ([finding(ranks=(0,), evidence="it saves")], WRONG, truth()),
        ([finding(ranks=(0, 1), evidence="it saves")], WRONG, truth()),
        ([finding("data_bound", (), evidence="it saves")], UNKNOWN, truth()),
        ([UNSURE], UNKNOWN, truth()),
        ([UNSURE], RIGHT, truth(unknown_ok=True)),
        ([], WRONG, truth()),
        ([finding(evidence="it saves; see pidstat")], WRONG, truth(forbid_words="pidstat")),
        ([finding("killed_rank", evidence="it saves")], WRONG, truth(forbid_kind="killed")),
        ([finding(evidence="it saves")], PARTLY, truth(kind="memory")),
        ([finding("data_bound", ()), finding(evidence="it saves")], UNKNOWN, truth()),
        ([finding("data_bound", ()), finding(evidence="it saves")], RIGHT, truth(top=2)),
        ([finding("data_bound", (), advice="save less")], RIGHT, truth(ranks=())),
        ([finding("data_bound", ())], PARTLY, truth(ranks=())),
        ([finding(evidence="it saves")], WRONG, truth(ranks=())),
        ([LOAD, finding(evidence="it saves")], RIGHT, truth()),
        ([LOAD, finding(ranks=(0,), evidence="it saves")], WRONG, truth()),
        ([LOAD, finding("data_bound", (), evidence="it saves")], RIGHT, truth(ranks=(), words="busy")),
        ([LOAD], UNKNOWN, truth()),
        ([finding("memory_growth", (1,))], RIGHT, truth(ranks=(), words="")),
    ],
)
def test_right_needs_the_culprits_and_their_cause(verdict: list[Finding], expected: str, known: Truth) -> None:
    assert grade(verdict, known) == expected


@pytest.mark.parametrize(("stated", "expected"), [(0.3, RIGHT), (0.24, RIGHT), (0.37, PARTLY), (None, PARTLY)])
def test_a_gain_may_be_off_by_a_fifth(stated: float | None, expected: str) -> None:
    verdict = [finding(evidence="it saves", estimated_gain_ratio=stated)]
    assert grade(verdict, truth(gain=True), gain=0.3) == expected


@pytest.mark.parametrize(
    ("recorded", "changed"),
    [({"loss.0": "1\n2\n"}, False), ({"loss.0": "1\n"}, False), ({"loss.0": "1\n3\n"}, True), ({}, False)],
)
def test_a_loss_that_differs_is_a_change(recorded: dict[str, str], changed: bool) -> None:
    """A rank that another one stops writes its losses up to then."""
    assert has_changed({"loss.0": "1\n2\n"}, recorded) == changed


def test_a_score_passes_with_four_fifths_right_and_none_wrong() -> None:
    assert passes([RIGHT] * 4 + [PARTLY])
    assert not passes([])
    assert not passes([RIGHT] * 7 + [PARTLY] * 2)
    assert not passes([RIGHT] * 9 + [f"{WRONG}: the training changed"])


def test_every_program_has_a_truth_and_every_item_has_a_program() -> None:
    assert {truth.program for truth in OURS.values()} == set(PROGRAMS.glob("*/*.py"))
    items = Counter(truth.item for truth in OURS.values())
    assert set(items) == {*ITEMS, HEALTHY}
    assert items[HEALTHY] >= 6
    assert items.total() - items[HEALTHY] >= 30
    assert {truth.nproc for truth in OURS.values()} == {2, 3, 4}
    assert [truth.name for truth in OURS.values() if truth.item != HEALTHY and "#" not in truth.thread] == []
    assert set(OURS) <= set(first_grades())


def test_the_page_is_as_the_commands_wrote_it() -> None:
    """Programs of trials may have joined after the score's table was written."""
    assert written_table(PAGE, "report-score-trial") == list(trial_lines())
    table = "\n".join(written_table(PAGE, "report-score") + written_table(PAGE, "report-score-trial"))
    assert [name for name in OURS if f"|{name.replace('_', ' ')}" not in table] == []


def test_a_core_is_kept_busy_by_one_process_of_its_own() -> None:
    with busy_cores() as spinning:
        assert [os.sched_getaffinity(pid) for pid in spinning] == [{core} for core in sorted(os.sched_getaffinity(0))]
    for pid in spinning:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_runs_of_a_program_are_counted_by_grade() -> None:
    found = ("straggler [1], high: late", "host_shortage no rank, high: busy")
    runs = [
        Outcome(name="a_b", grade=grade, finding=found[grade == PARTLY], run=Path()) for grade in (RIGHT, PARTLY, RIGHT)
    ]
    *_, row = repeated_lines({"a_b": runs}, "1234", busy=True)
    assert row == "|a b|3|2|1 partly|2 straggler, 1 host shortage|"


def test_the_end_of_a_launch_that_the_score_stopped_is_not_the_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STILL_SECONDS", 0.0)
    program = tmp_path / "aborts.py"
    program.write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: os.abort())\ntime.sleep(600)\n"
    )
    with (tmp_path / "log").open("ab") as log:
        assert running._end([sys.executable, program], tmp_path, dict(os.environ), log) == running.STOPPED


@pytest.mark.parametrize("name", swept(QUICK, but=["two_groups"]))
def test_a_program_gets_the_right_verdict(name: str, tmp_path: Path) -> None:
    outcome = judge(OURS[name], keep=tmp_path, bare=tmp_path / "bare")
    assert outcome.grade == RIGHT, outcome
