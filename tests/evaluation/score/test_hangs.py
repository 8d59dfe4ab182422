"""One case of the score on a real training, and how the score counts."""

import os
import random
from pathlib import Path

import pytest

from evaluation.score.cases import FAULTS, HANGING, LAYOUTS, LINK_CUT, SIZES, Case, stratified
from evaluation.score.hangs import Tally
from evaluation.score.judging import NOT_KNOWN, RIGHT, WRONG, Outcome, Verdict, judge

CASE = Case(fault="sleep", layout="ddp", size=4, recording="full", rank=2, step=20)
NAMED = Verdict(named=(2,), kind="stuck", is_known=True)


@pytest.mark.sweep
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job a network of its own and cut it")
def test_a_cut_link_is_found_and_names_no_rank(tmp_path: Path) -> None:
    """All ranks of a real DDP training joined their all-reduce, and no message arrives any more."""
    case = Case(fault=LINK_CUT, layout="ddp", size=2, recording="windows", rank=0, step=12)
    outcome = judge(case, tmp_path, wait_seconds=100.0)
    assert outcome.injected, (tmp_path / "log").read_text()
    for found in (outcome.live, outcome.after):
        assert found is not None
        assert (found.kind, found.named, found.score(case)) == ("none_completes", (), RIGHT), found


@pytest.mark.sweep
def test_a_size_that_makes_gloo_abort_in_an_unrecorded_step_names_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher ends the other rank at its next look; before, that one writes its flight recorder.

    torchrun looks every 0.1 s. On a busy machine the rank may need longer, and the answer is then unknown. So it is
    without the stack of the abort, which needs `signal_stacks`.
    """
    monkeypatch.setenv("TRAINCOPE_SIGNAL_STACKS", "on")
    monkeypatch.setenv("PET_MONITOR_INTERVAL", "5")
    outcome = judge(Case(fault="wrong_size", layout="plain", size=2, recording="level 0", rank=1, step=20), tmp_path)
    assert outcome.injected, (tmp_path / "log").read_text()
    assert (outcome.after.kind, outcome.after.named) == ("mismatch", (1,)), outcome.after


@pytest.mark.parametrize(
    ("verdict", "score"),
    [
        (NAMED, RIGHT),
        (Verdict(named=(2,), kind="stuck"), NOT_KNOWN),
        (Verdict(named=(1,), kind="stuck", is_known=True), WRONG),
        (Verdict(named=(1, 2), kind="stuck", is_known=True), WRONG),
        (Verdict(named=(2,), kind="mismatch", is_known=True), WRONG),
        (Verdict(kind="none_completes", is_known=True), WRONG),
        (Verdict(kind="stopped_job", is_known=True), NOT_KNOWN),
        (Verdict(), NOT_KNOWN),
    ],
)
def test_right_needs_the_culprits_and_the_kind(verdict: Verdict, score: str) -> None:
    assert verdict.score(CASE) == score


def test_one_wrong_name_fails_the_score(tmp_path: Path) -> None:
    def outcome(after: Verdict) -> Outcome:
        return Outcome(case=CASE, directory=tmp_path, injected=True, live=None, after=after)

    tally = Tally()
    for _ in range(100):
        tally.add(outcome(NAMED))
    assert tally.passes(left=0)
    assert not tally.passes(left=1)
    tally.add(outcome(Verdict(named=(1,), kind="stuck", is_known=True)))
    assert not tally.passes(left=0)


def test_unknown_messages_between_windows_are_counted_apart(tmp_path: Path) -> None:
    case = Case(fault="sleep", layout="pipeline", size=2, recording="level 0", rank=1, step=20)
    tally = Tally()
    for named in (Verdict(), Verdict(named=(1,), kind="stuck", is_known=True)):
        tally.add(Outcome(case=case, directory=tmp_path, injected=True, live=None, after=named))
    assert list(tally.lines())[1:] == [
        "after: 1 right, 0 wrong, 0 unknown; precision 1.000, recall 1.000",
        "after: not counted: 1 unknown in messages between windows, which gloo's flight recorder lacks; "
        "with them, recall 0.500",
    ]


def test_cases_are_stratified() -> None:
    """120 cases have every fault five or six times, and every layout, size and recording."""
    chosen = list(stratified(random.Random(3), count=120, faults=FAULTS, layouts=LAYOUTS, sizes=SIZES))
    counts = [sum(case.fault == fault for case in chosen) for fault in FAULTS]
    assert (min(counts), max(counts)) == (5, 6)
    assert {case.layout for case in chosen} == set(LAYOUTS)
    assert {case.size for case in chosen} == {2, 4, 8}
    assert len({case.recording for case in chosen}) == 3
    assert set(FAULTS) > HANGING
