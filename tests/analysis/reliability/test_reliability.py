"""Reliability of jobs whose every second is known."""

from dataclasses import replace

import pytest

from tests.analysis.efficiency.test_goodput import DECLARED, S, attempt, load, save, started, steps
from tests.timeline.build import Row, rank, run, step
from traincope.analysis import FaultKind
from traincope.analysis.efficiency.goodput import goodput
from traincope.analysis.faults.endings import endings
from traincope.analysis.reliability.reliability import Reliability, reliability
from traincope.plan.cadence import Failures, daly_seconds, useful_ratio
from traincope.store import Attempt, LauncherNote
from traincope.store.job.hang_notices import HangNotice
from traincope.timeline import build_timeline


def job(
    *earlier: Attempt, last: list[Row], notes: tuple[LauncherNote, ...] = (), ending: str | None = "clean"
) -> Reliability:
    records = replace(rank(0, *last), attempt=len(earlier), details=DECLARED)
    records = replace(records, info=replace(records.info, ending=ending))
    timeline = build_timeline(replace(run(records), earlier=earlier, launcher=notes))
    result = reliability(timeline, goodput(timeline), ends=endings(timeline))
    assert result is not None
    assert_all_badput_is_listed(result)
    return result


def assert_all_badput_is_listed(result: Reliability) -> None:
    if result.productive_ratio is not None:
        lost_ns = sum(entry.ns or 0 for entry in result.badput)
        assert lost_ns == pytest.approx(result.elapsed_ns * (1 - result.productive_ratio))


def killed(number: int, *, noticed_s: float) -> LauncherNote:
    at_ns = round(noticed_s * S)
    return LauncherNote(attempt=number, rank=0, exit_code=-9, first=True, at_wall_ns=at_ns, noticed_wall_ns=at_ns)


def first_attempt() -> Attempt:
    """5 s of start-up and 4 steps of 10 s until 45 s; saved for 1 s after the second. 2 steps are lost."""
    made = attempt(0, started(0), *steps(5, 4), save(25, step_number=2), ending=None)
    return replace(made, noted=True, rank_last_ns={0: 45 * S})


def second_attempt() -> list[Row]:
    """Begins at 50 s, loads for 2 s, makes 10 steps from 55 s to 155 s."""
    return [started(50), load(50), *steps(55, 10)]


def test_a_killed_rank_is_one_interruption_with_all_its_times() -> None:
    """Killed at 45 s, noticed 0.4 s later; the next first step begins at 55 s; 19 s of steps are lost."""
    result = job(first_attempt(), last=second_attempt(), notes=(killed(0, noticed_s=45.4),))
    (interruption,) = result.interruptions
    assert (interruption.cause, interruption.what) == ("killed", "rank 0 was killed (signal 9)")
    assert (interruption.at_ns, interruption.detect_ns, interruption.restart_ns) == (45 * S, 400_000_000, 10 * S)
    assert (interruption.lost_steps, interruption.lost_ns) == (2, 19 * S)
    assert (result.elapsed_ns, result.running_ns) == (155 * S, (45 + 105) * S)
    assert result.productive_ratio == pytest.approx((20 + 100) / 155)
    assert result.mtbf is not None
    assert result.mtbf.ns == 150 * S
    assert [(entry.part, entry.cause, entry.ns) for entry in result.badput] == [
        ("lost", "killed", 19 * S),
        ("restart", "killed", 10 * S),
        ("startup", None, 5 * S),
        ("checkpoint_stall", None, S),
    ]


def test_without_a_launchers_note_the_time_to_notice_is_unknown() -> None:
    (interruption,) = job(first_attempt(), last=second_attempt()).interruptions
    assert (interruption.cause, interruption.detect_ns) == ("no_end", None)


def test_a_clean_end_is_no_interruption_but_its_restart_is_badput() -> None:
    clean = attempt(0, started(0), *steps(0, 4), save(39, step_number=3), ending="clean")
    result = job(clean, last=[started(50), load(50), *steps(52, 10)])
    assert (result.num_interruptions, result.mean_restart_ns) == (0, None)
    assert result.mtbf is not None
    assert (result.mtbf.ns, result.mtbf.high_ns) == (None, None)
    assert ("restart", "clean_end", 12 * S) in [(entry.part, entry.cause, entry.ns) for entry in result.badput]


def test_a_failed_last_attempt_is_an_interruption_without_a_restart() -> None:
    result = job(last=[started(0), *steps(0, 4)], ending="ValueError")
    (interruption,) = result.interruptions
    assert (interruption.cause, interruption.restart_ns, interruption.lost_ns) == (FaultKind.EXCEPTION, None, None)


def test_a_stopped_job_and_a_running_one_have_no_interruption() -> None:
    stop = LauncherNote(attempt=0, rank=None, exit_code=-15, first=False, at_wall_ns=40 * S)
    assert not job(last=[started(0), *steps(0, 4)], ending=None, notes=(stop,)).interruptions
    assert not job(last=[started(0), *steps(0, 4)], ending=None).interruptions


def test_an_attempt_whose_launcher_was_stopped_and_continued_counts_as_stopped() -> None:
    stop = LauncherNote(attempt=0, rank=None, exit_code=-15, first=False, at_wall_ns=46 * S)
    result = job(first_attempt(), last=second_attempt(), notes=(stop,))
    assert [(cause.cause, cause.count, cause.ratio) for cause in result.causes] == [("stopped", 1, 1.0)]


def test_an_attempt_that_an_agent_found_hung_counts_as_hung() -> None:
    """Rank 0 stood since 45 s; the agent knew 30 s later. Then the job ended, and the launcher noted its exit."""
    notice = HangNotice(attempt=0, at_wall_ns=75 * S, culprits=(0,), sentence="rank 0 stands still")
    note = replace(killed(0, noticed_s=76), exit_code=11)
    result = job(replace(first_attempt(), hang=notice), last=[started(80), load(80), *steps(85, 10)], notes=(note,))
    (interruption,) = result.interruptions
    assert (interruption.cause, interruption.what) == ("hang", "rank 0 exited with code 11")
    assert (interruption.at_ns, interruption.detect_ns, interruption.restart_ns) == (45 * S, 30 * S, 40 * S)


def test_a_hang_is_detected_from_its_begin_on() -> None:
    """It began at 40 s. Rank 0's last record, at 45 s, is of the exception that ended it. A notice of an earlier
    version lacks the begin, which the last record does not show then.
    """
    for judged, at_s, detect_ns in (({"since": 40 * S}, 40, 3 * S), ({}, 45, None), ({"since": 44 * S}, 45, None)):
        notice = HangNotice(attempt=0, at_wall_ns=43 * S, culprits=(0,), sentence="rank 0 stands still", judged=judged)
        result = job(replace(first_attempt(), hang=notice), last=[started(80), load(80), *steps(85, 10)])
        (interruption,) = result.interruptions
        assert (interruption.cause, interruption.at_ns, interruption.detect_ns) == ("hang", at_s * S, detect_ns)


def test_unknown_lost_steps_stay_unknown() -> None:
    """The next attempt loads nothing and does not say where it continues."""
    result = job(first_attempt(), last=[started(50), *steps(55, 10)])
    assert (result.productive_ratio, result.rolling) == (None, ())
    assert result.interruptions[0].lost_ns is None
    lost = next(entry for entry in result.badput if entry.part == "lost")
    assert (lost.ns, lost.unknown) == (None, 1)


def test_rolling_goodput_is_that_of_the_window() -> None:
    """4 h of steps of 10 s, and a checkpoint stall over the whole third hour."""
    hour = 360
    before, after = steps(0, 2 * hour), steps(3 * 3600, hour)
    stall = replace(save(2 * 3600), end_ns=3 * 3600 * S)
    after = [replace(row, step=row.step + 2 * hour) for row in after]
    result = job(last=[started(0), *before, stall, *after])
    (window,) = result.rolling
    assert window.window_ns == 3600 * S
    ends = [(end_ns - window.ends_ns[0]) // S for end_ns in window.ends_ns]
    assert ends == [900 * at for at in range(13)]
    assert window.ratios == pytest.approx([1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0.25, 0.5, 0.75, 1], abs=1e-6)


def test_rolling_goodput_sums_to_the_productive_time() -> None:
    """Attempts of 30 minutes, the first half of whose steps is lost."""
    first = attempt(0, started(0), *steps(0, 180), save(900, step_number=90), ending=None)
    result = job(first, last=[started(1800), load(1800), *steps(1802, 180)])
    (window,) = result.rolling
    assert result.productive_ratio is not None
    assert window.ratios[-1] == pytest.approx((899 - 2 + 1800) / 3600, abs=1e-3)


def test_the_cadence_is_dalys_of_the_measured_numbers() -> None:
    """A save of 1 s after each 99 s of training, and ten attempts of 2000 s: one interruption each but the last."""
    made = []
    for number in range(9):
        at = 3000 * number
        made.append(attempt(number, started(at), *steps(at, 200), ending="ValueError"))
    saves = [save(27_000 + 100 * at + 99) for at in range(20)]
    rows = [started(27_000), load(27_000), *steps(27_000, 200), *saves]
    result = job(*made, last=rows)
    assert result.saves is not None
    assert (result.saves.count, result.saves.stall_ns, result.saves.interval_ns) == (20, S, 99 * S)
    best = result.cadence
    assert best is not None
    assert result.mtbf is not None
    assert result.mtbf.ns is not None
    assert result.mean_restart_ns is not None
    failures = Failures(mtbf_seconds=result.mtbf.ns / S, save_seconds=1.0, restart_seconds=result.mean_restart_ns / S)
    assert best.best_ns / S == pytest.approx(daly_seconds(failures))
    assert best.best_low_ns < best.best_ns < best.best_high_ns
    assert best.lost_ratio == pytest.approx(1 - useful_ratio(failures, 99.0))
    assert best.gain_ratio == pytest.approx(best.lost_ratio - best.best_lost_ratio)


def test_a_job_of_one_instant_has_no_rate() -> None:
    result = job(last=[step(0, S, S)])
    assert (result.elapsed_ns, result.running_ratio, result.mtbf) == (0, None, None)
    assert result.mtbf_reason is not None
