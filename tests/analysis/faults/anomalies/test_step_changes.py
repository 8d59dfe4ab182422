"""Changes of the step time that no window shows: found from the lengths of all steps, and named."""

import numpy as np
import pytest

from tests.analysis.lockstep import lockstep
from tests.analysis.windows import in_window, thin
from tests.timeline.build import timeline
from traincope.analysis import Finding, FindingKind, analyze
from traincope.analysis.faults.anomalies.step_changes import TermGrowth, change_point, step_changes
from traincope.events import BLOCK_STEPS, Phase
from traincope.timeline import Timeline

MS = 1_000_000
STEPS = 40 * BLOCK_STEPS
CHANGE = 137
RUN_ID = next(
    name
    for name in map(str, range(100))
    if not any(in_window(CHANGE + steps, run_id=name, halvings=2) for steps in (-BLOCK_STEPS, 0, BLOCK_STEPS))
)
"""An id with which the steps around CHANGE are light."""


def recorded(*, longer_ns: tuple[int, int], seed: int = 0, of: Phase = Phase.DATA_WAIT) -> Timeline:
    """Steps of 60 to 66 ms on two ranks, all of it in one phase. From CHANGE on, the ranks take so much longer."""
    work = np.random.default_rng(seed).integers(60 * MS, 66 * MS, size=(STEPS, 2))
    work[CHANGE:] += np.array(longer_ns)
    full = timeline(*lockstep(work.tolist(), transfer_ns=2 * MS, of=of, all_ns=MS))
    return thin(full, run_id=RUN_ID, halvings=2)


def found(recording: Timeline) -> list[Finding]:
    return [finding for finding in analyze(recording).verdict if finding.kind is FindingKind.STEP_TIME_CHANGE]


def test_a_rank_that_becomes_slow_between_windows_is_named_by_its_term() -> None:
    recording = recorded(longer_ns=(0, 50 * MS))
    (change,) = step_changes(recording, analyze(recording).ledger)
    assert change.step == CHANGE
    assert change.before_ns == pytest.approx(66 * MS, rel=0.02)
    assert change.after_ns == pytest.approx(115 * MS, rel=0.02)
    before_steps, after_steps = CHANGE - 1, STEPS - CHANGE
    lost = 49 * after_steps / (66 * before_steps + 115 * after_steps)
    assert change.lost_ratio == pytest.approx(lost, rel=0.03)
    before, after = change.windows
    assert before is not None
    assert after is not None
    assert before[1] < CHANGE - BLOCK_STEPS
    assert after[0] > CHANGE + BLOCK_STEPS
    assert change.growth is not None
    assert (change.growth.rank, change.growth.term) == (1, "data_wait")
    (finding,) = found(recording)
    assert (finding.ranks, finding.steps) == ((1,), (CHANGE,))
    assert f"at step {CHANGE}, between the windows of steps {before[0]} to {before[1]} and steps " in finding.evidence
    assert "data_wait of rank 1 grew from" in finding.evidence
    assert finding.estimated_gain_ratio == change.lost_ratio


@pytest.mark.parametrize(("longer_ns", "of"), [((50 * MS, 50 * MS), Phase.DATA_WAIT), ((0, 50 * MS), Phase.BACKWARD)])
def test_a_change_of_all_ranks_or_of_what_windows_show_names_no_rank(longer_ns: tuple[int, int], of: Phase) -> None:
    (finding,) = found(recorded(longer_ns=longer_ns, of=of))
    assert finding.ranks == ()
    assert "show no single rank as its cause" in finding.evidence


def test_steps_that_become_shorter_are_a_change_without_a_saving() -> None:
    (finding,) = found(recorded(longer_ns=(-20 * MS, -20 * MS)))
    assert "the median step fell from" in finding.evidence
    assert (finding.advice, finding.estimated_gain_ratio) == ("", None)


@pytest.mark.parametrize("seed", range(10))
def test_steady_steps_have_no_change(seed: int) -> None:
    assert found(recorded(longer_ns=(0, 0), seed=seed)) == []


def test_a_change_that_detail_shows_is_left_to_the_detail() -> None:
    work = [[60 * MS + 50 * MS * (number >= CHANGE)] * 2 for number in range(STEPS)]
    full = timeline(*lockstep(work, transfer_ns=2 * MS, all_ns=MS))
    shown = next(name for name in map(str, range(100)) if in_window(CHANGE, run_id=name, halvings=2))
    assert found(full) == []
    assert found(thin(full, run_id=shown, halvings=2)) == []


def test_single_slow_steps_are_no_change() -> None:
    random = np.random.default_rng(0)
    lengths = random.normal(100, 5, size=200)
    lengths[::20] = 1_000
    assert change_point(lengths) is None


def test_few_steps_have_no_change() -> None:
    assert change_point(np.array([1.0] * 15 + [2.0] * 16)) is None
    assert change_point(np.array([1.0] * 16 + [2.0] * 16)) == 16
    assert change_point(np.array([0.0] * 16 + [2.0] * 16)) is None


def test_a_growth_is_of_one_rank() -> None:
    recording = recorded(longer_ns=(0, 50 * MS))
    (change,) = step_changes(recording, analyze(recording).ledger)
    assert isinstance(change.growth, TermGrowth)
    assert change.growth.after_ns - change.growth.before_ns == pytest.approx(50 * MS, rel=0.1)
