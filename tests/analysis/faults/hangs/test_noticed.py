"""Hangs that an agent announced: its answer counts where the end of the job hides the culprit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.faults.hangs.test_stops import (
    FAULTY,
    LAST_NS,
    MS,
    NUM_STEPS,
    SEEN_NS,
    STOP_NS,
    WAITING,
    WORLD,
    S,
    looked,
    steps,
    stuck,
    victim,
    waiting,
)
from tests.analysis.faults.test_lost_hosts import B
from tests.timeline.build import Row, collective, phase, rank, run, step
from traincope.analysis import Analysis, FaultKind, FindingKind, Hang, HangKind, analyze
from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.faults.hangs.noticed import MAX_CHARACTERS, NOTED, announced, noticed_hang
from traincope.events import CLEAN, OPEN, Flag, Phase
from traincope.report.text.hangs import hang_document
from traincope.store import RankRecords, RunRecords
from traincope.store.job.hang_notices import HangNotice, StopState, append_notice, read_notices
from traincope.store.job.manifests import RankInfo
from traincope.store.job.witness import Heard
from traincope.store.layout import HANGS_FILE
from traincope.store.reading import WitnessedHost
from traincope.timeline import build_timeline

SEEN = analyze(build_timeline(run(victim(0), stuck(1))))
"""The job during the hang, as the agent judged it."""
JUDGED: dict[str, Any] = dict(hang_document(SEEN.hangs, SEEN.verdict[:1])["hangs"][0])
NOTICE = HangNotice(attempt=0, at_wall_ns=SEEN_NS + S, culprits=(1,), sentence="hang", judged=JUDGED)


DAMAGE: tuple[dict[str, Any], ...] = (
    {"since": 10**40},
    {"since": 1 << 62},
    {"lasted_ns": 1e308},
    {"lasted_ns": -1},
    {"detected_after_seconds": 1e300},
    {"detected_after_seconds": 1e301},
    {"detected_after_seconds": "x"},
    {"step": 10**40},
    {"victims": [10**30]},
    {"victims": [2]},
    {"victims": [[0, 10**12]]},
    {"victims": [[0]]},
    {"victims": None},
    {"stack": 5},
    {"confidence": "of a later version"},
)
"""Values of a damaged or foreign line. No record and no rank of this run has them."""


def clean(number: int) -> RankInfo:
    return replace(failed(number).info, ending=CLEAN)


def failed(number: int = 0, *, after: int = 0) -> RankRecords:
    """The victim after the end: its connection failed. No look at it is left. `after`: steps that it completed since
    the hang.
    """
    later = [step(NUM_STEPS + at, STOP_NS + at * 60 * S, STOP_NS + (at + 1) * 60 * S) for at in range(after)]
    before = [step(at, at * 100 * MS, (at + 1) * 100 * MS) for at in range(NUM_STEPS)]
    begun_ns = STOP_NS + after * 60 * S
    last = step(NUM_STEPS + after, begun_ns, OPEN)
    inside = phase(Phase.BACKWARD, begun_ns + 20 * MS, SEEN_NS + after * 60 * S, at=NUM_STEPS + after)
    return rank(number, *before, *later, last, inside, groups=[WORLD], ending="RuntimeError")


def standing(of: Analysis) -> list[Hang]:
    """The stops that are not over."""
    return [hang for hang in of.hangs if hang.stopped]


def noted(*ranks: RankRecords, notice: HangNotice = NOTICE) -> RunRecords:
    return replace(run(*ranks, world_size=2), notices=(notice,))


def test_a_later_death_is_a_consequence_of_the_announced_hang() -> None:
    """The host of rank 0 alone: rank 1 left no records there."""
    analysis = analyze(build_timeline(noted(failed())))
    (hang,) = analysis.hangs
    (before,) = SEEN.hangs
    assert before.state is StopState.STALL
    assert hang == replace(before, state=StopState.HANG, evidence=f"{before.evidence}; {NOTED}")
    assert (hang.kind, hang.culprits, hang.step, hang.since_ns) == (HangKind.STUCK, (1,), NUM_STEPS, LAST_NS)
    first, *others = analysis.verdict
    assert (first.kind, first.ranks, first.steps) == (FindingKind.HANG, (1,), (NUM_STEPS,))
    assert not {FindingKind.FAILED_RANK, FindingKind.KILLED_RANK} & {finding.kind for finding in others}
    (end,) = (fault for fault in analysis.faults if fault.kind is FaultKind.EXCEPTION)
    assert (end.ranks, end.follows) == ((0,), True)


def test_without_the_announcement_the_failed_rank_is_named() -> None:
    analysis = analyze(build_timeline(run(failed(), world_size=2)))
    assert (analysis.hangs, analysis.verdict[0].kind, analysis.verdict[0].ranks) == ((), FindingKind.FAILED_RANK, (0,))


@pytest.mark.parametrize(
    "notice",
    [
        replace(NOTICE, judged={}),
        replace(NOTICE, judged={**JUDGED, "kind": "of a later version"}),
        replace(NOTICE, judged={**JUDGED, "since": None}),
        replace(NOTICE, culprits=()),
        replace(NOTICE, culprits=(2,)),
        replace(NOTICE, culprits=(-1,)),
        *(replace(NOTICE, judged={**JUDGED, **damage}) for damage in DAMAGE),
    ],
)
def test_an_announcement_that_names_no_hang_changes_nothing(notice: HangNotice) -> None:
    assert analyze(build_timeline(noted(failed(), notice=notice))).hangs == ()


def test_a_hang_that_ended_by_itself_explains_no_later_end() -> None:
    analysis = analyze(build_timeline(noted(failed(after=1))))
    assert (standing(analysis), analysis.verdict[0].kind) == ([], FindingKind.FAILED_RANK)


def test_a_step_counts_by_its_number_where_clocks_differ() -> None:
    """The announcement's clock is 60 s behind. Steps before the hang end after it, and do not end the hang."""
    behind = replace(NOTICE, culprits=(1,), at_wall_ns=NOTICE.at_wall_ns - 60 * S)
    for next_step, num_hangs in ((None, 0), (NUM_STEPS, 1), (NUM_STEPS - 1, 0)):
        notice = replace(behind, next_step=next_step)
        assert len(standing(analyze(build_timeline(noted(failed(), notice=notice))))) == num_hangs


def test_records_that_still_show_the_culprit_count() -> None:
    """The records of all hosts: they know more than one agent did."""
    wrong = replace(NOTICE, culprits=(0,))
    assert analyze(build_timeline(noted(victim(0), stuck(1), notice=wrong))).hangs == SEEN.hangs


def early(*culprits: int, lasted_ns: int = 10 * S, **changes: object) -> HangNotice:
    """An announcement of a stop from the last records on, judged after `lasted_ns`."""
    judged = {**JUDGED, "since": LAST_NS, "lasted_ns": lasted_ns, "evidence": f"rank {culprits[0]} stood", **changes}
    return replace(NOTICE, culprits=culprits, at_wall_ns=LAST_NS + lasted_ns + S, judged=judged)


def begun(number: int, *, at_ns: int, of: Phase = Phase.FORWARD, ending: str | None = None) -> RankRecords:
    """The rank that stopped, where it began a phase at `at_ns`, in the same step."""
    before = [step(at, at * 100 * MS, (at + 1) * 100 * MS) for at in range(NUM_STEPS)]
    rows = [*before, step(NUM_STEPS, STOP_NS, OPEN), phase(of, at_ns, OPEN, at=NUM_STEPS)]
    return looked(rank(number, *rows, groups=[WORLD], ending=ending), FAULTY, at_ns=at_ns + 34 * S)


def late_victim(number: int = 0) -> RankRecords:
    """It began to wait 20 s after the stop."""
    records = rank(number, *steps(), *waiting(after_ns=20 * S), groups=[WORLD], ending=None)
    return looked(records, WAITING, at_ns=STOP_NS + 55 * S)


def test_a_hang_that_began_after_the_announcement_is_a_consequence() -> None:
    """The culprit of the announced hang never moved. Rank 0 waited for it only later."""
    (without,) = analyze(build_timeline(run(late_victim(), stuck(1)))).hangs
    assert without.since_ns == STOP_NS + 20 * S
    (hang,) = analyze(build_timeline(noted(late_victim(), stuck(1), notice=early(1, kind="left")))).hangs
    assert (hang.kind, hang.culprits, hang.since_ns) == (HangKind.LEFT, (1,), LAST_NS)


def test_a_culprit_that_moved_on_within_the_step_did_not_cause_a_later_hang() -> None:
    """Rank 0 paused for 10 s and was announced. It joined its all-reduce at 20 s, and rank 1 did not."""
    truth = analyze(build_timeline(run(late_victim(), stuck(1)))).hangs
    assert [(hang.culprits, hang.confidence) for hang in truth] == [((1,), HIGH)]
    noticed = analyze(build_timeline(noted(late_victim(), stuck(1), notice=early(0))))
    assert standing(noticed) == list(truth)
    (paused,) = (hang for hang in noticed.hangs if hang.state is StopState.OVER)
    assert (paused.culprits, paused.lasted_ns) == ((0,), 10 * S)


def test_a_copy_shows_that_the_culprit_moved_on() -> None:
    """The host of rank 0 alone: another host's rank 1 paused, and went on with its step."""
    for at_ns, culprits in ((STOP_NS + 10 * MS, [(1,)]), (LAST_NS + 20 * S, [])):
        copy = replace(begun(1, at_ns=at_ns), looks=())
        heard = Heard(host=B.info.host, witness=B.info.host, heard_wall_ns=STOP_NS, silent_ns=S)
        witnessed = (WitnessedHost(heard=heard, ranks=(copy,)),)
        analysis = analyze(build_timeline(replace(noted(failed(), notice=early(1)), witnessed=witnessed)))
        assert [hang.culprits for hang in standing(analysis) if hang.confidence == HIGH] == culprits


def test_a_run_that_ended_cleanly_did_not_hang() -> None:
    """All ranks stood in a barrier after the last step, until rank 1 had saved its state."""
    analysis = analyze(build_timeline(noted(*(replace(failed(at), info=clean(at)) for at in (0, 1)))))
    assert (standing(analysis), FindingKind.HANG in {finding.kind for finding in analysis.verdict}) == ([], False)


def test_a_rank_that_left_early_stays_the_culprit_on_its_host() -> None:
    """Its clean end is the hang. The rank that waited for it is on another host."""
    left = replace(NOTICE, culprits=(0,), judged={**JUDGED, "kind": "left", "victims": [1]})
    alone = replace(failed(0), info=clean(0))
    (hang,) = analyze(build_timeline(noted(alone, notice=left))).hangs
    assert (hang.kind, hang.culprits) == (HangKind.LEFT, (0,))


def test_what_an_exception_closed_is_no_progress_of_the_culprit() -> None:
    """The launcher ended rank 1, and the exception closed its phase 60 s after the announcement."""
    before = [step(at, at * 100 * MS, (at + 1) * 100 * MS) for at in range(NUM_STEPS)]
    closed = phase(Phase.FORWARD, STOP_NS + 10 * MS, SEEN_NS + 60 * S, at=NUM_STEPS)
    rows = [*before, step(NUM_STEPS, STOP_NS, OPEN), closed]
    for ending, standing in (("KeyboardInterrupt", True), (None, False)):
        noticed = noticed_hang(build_timeline(noted(failed(), rank(1, *rows, groups=[WORLD], ending=ending))))
        assert (noticed is not None) is standing


DYING_NS = SEEN_NS + 60 * S
"""Instant at which a time-out of the backend ended the ranks."""


@pytest.mark.parametrize(
    "after",
    [
        [phase(Phase.GC, DYING_NS, DYING_NS + MS, at=NUM_STEPS)],
        [
            collective(STOP_NS + 30 * MS, DYING_NS, name="barrier", at=NUM_STEPS, flags=Flag.RAISED),
            phase(Phase.CHECKPOINT_STALL, DYING_NS + MS, DYING_NS + S, at=NUM_STEPS),
        ],
    ],
    ids=["garbage collection", "what a handler did after the failed collective"],
)
def test_what_a_dying_process_does_is_no_progress_of_the_culprit(after: list[Row]) -> None:
    rows = [*steps(), *after]
    dying = noted(failed(), rank(1, *rows, groups=[WORLD], ending="RuntimeError"))
    noticed = noticed_hang(build_timeline(dying))
    assert noticed is not None
    assert noticed.culprits == (1,)


@pytest.mark.parametrize(
    ("ending", "error"), [("ValueError", "; then rank 1 raised ValueError"), ("KeyboardInterrupt", "")]
)
def test_the_culprits_own_error_is_in_the_finding_and_an_interruption_is_not(ending: str, error: str) -> None:
    """Its loader timed out, or a person pressed Ctrl-C."""
    last = phase(Phase.GC, DYING_NS, DYING_NS + MS, at=NUM_STEPS)
    dying = noted(failed(), rank(1, *steps(), last, groups=[WORLD], ending=ending))
    hang = analyze(build_timeline(dying)).verdict[0]
    assert (hang.kind, hang.ranks) == (FindingKind.HANG, (1,))
    assert hang.evidence.partition(NOTED)[2].startswith(error)
    assert ("raised" in hang.evidence) is bool(error)


def test_a_stop_that_ended_by_itself_is_reported_with_rank_place_and_length() -> None:
    """Rank 1 paused for 40 s in step 5 and went on; the agent announced it, and its end."""
    over = {**JUDGED, "state": "over", "lasted_ns": 40 * S}
    notices = (NOTICE, replace(NOTICE, at_wall_ns=NOTICE.at_wall_ns + 6 * S, state="over", judged=over))
    both = [step(at, at * 100 * MS, (at + 1) * 100 * MS) for at in range(NUM_STEPS)]
    both += [step(NUM_STEPS, STOP_NS, STOP_NS + 40 * S), step(NUM_STEPS + 1, STOP_NS + 40 * S, STOP_NS + 41 * S)]
    whole = replace(run(*(rank(at, *both, groups=[WORLD]) for at in (0, 1))), notices=notices)
    analysis = analyze(build_timeline(whole))
    (hang,) = analysis.hangs
    assert (hang.state, hang.culprits, hang.call_site, hang.lasted_ns) == (StopState.OVER, (1,), "train.py:9", 40 * S)
    (fault,) = (fault for fault in analysis.faults if fault.kind is FaultKind.STALL)
    evidence = "rank 1 stood at train.py:9 for 40.0 s; rank 0 waited for it in all_reduce on dp; then the job went on"
    assert (fault.ranks, fault.lasted_ns, fault.what) == ((1,), 40 * S, evidence)
    (finding,) = (finding for finding in analysis.verdict if finding.kind is FindingKind.STALL)
    assert (finding.ranks, finding.evidence) == ((1,), evidence)
    assert finding.estimated_gain_ratio == pytest.approx(40 / 41.5)
    assert not {FaultKind.HANG, FaultKind.MISMATCH} & {fault.kind for fault in analysis.faults}


@pytest.mark.parametrize("updates", [False, True])
def test_a_stop_in_which_the_others_caught_their_errors_ended_the_job(updates: bool) -> None:
    """The time-out of rank 0 came after 60 s in its backward. If it updated its weights after that, it went on."""
    gave_up_ns = STOP_NS + 60 * S
    before = [step(at, at * 100 * MS, (at + 1) * 100 * MS) for at in range(NUM_STEPS)]
    rows = [*before, step(NUM_STEPS, STOP_NS, gave_up_ns), phase(Phase.BACKWARD, STOP_NS, gave_up_ns, at=NUM_STEPS)]
    rows += [phase(Phase.OPTIMIZER, gave_up_ns, gave_up_ns + MS, at=NUM_STEPS)] if updates else []
    victims = rank(0, *rows, groups=[WORLD], ending=CLEAN)
    culprit = rank(1, *before, step(NUM_STEPS, STOP_NS, gave_up_ns + S), groups=[WORLD], ending=CLEAN)
    analysis = analyze(build_timeline(noted(victims, culprit)))
    (hang,) = analysis.hangs
    assert (hang.state, hang.culprits) == (StopState.OVER if updates else StopState.HANG, (1,))
    if not updates:
        assert analysis.verdict[0].kind is FindingKind.HANG
        assert (hang.evidence.partition(";")[0]) == "rank 1 stood at train.py:9 for 60.0 s"
        assert hang.evidence.endswith("these ended their runs in that step, after an error that they caught")


def test_without_the_note_of_its_end_a_stop_lasted_at_least_as_long_as_announced() -> None:
    went_on = [replace(failed(at, after=1), info=clean(at)) for at in (0, 1)]
    (hang,) = analyze(build_timeline(noted(*went_on))).hangs
    assert (hang.state, hang.evidence.partition(";")[0]) == (
        StopState.OVER,
        "rank 1 stood at train.py:9 for at least 34.0 s",
    )


def test_the_newest_judgement_of_a_hang_counts() -> None:
    """The same stop, judged twice. A stop after it is its consequence: rank 0 ended, and rank 1 is on another host."""
    second = early(1, lasted_ns=20 * S)
    later = early(0, lasted_ns=S, since=SEEN_NS + 60 * S)
    for notices in ((early(2), second), (second, early(2)), (early(2), second, replace(later, at_wall_ns=SEEN_NS * 9))):
        timeline = build_timeline(replace(run(failed(), world_size=3), notices=notices))
        noticed = noticed_hang(timeline)
        assert noticed is not None
        assert noticed.culprits == (1,)


def test_a_host_that_is_lost_after_the_announcement_is_no_cause() -> None:
    """The same hang, with medium confidence; 60 s later the other host was switched off."""
    medium = replace(NOTICE, judged={**JUDGED, "confidence": MEDIUM})
    copy = rank(1, step(0, 0, 100 * MS), groups=[WORLD], boot_id="b", ending=None)
    of_a = replace(failed(), info=replace(failed().info, host=replace(B.info.host, name="a", boot_id="a")))
    for heard_s, first in ((60, FindingKind.HANG), (0, FindingKind.LOST_HOST)):
        heard = Heard(
            host=copy.info.host, witness=of_a.info.host, heard_wall_ns=STOP_NS + heard_s * S, silent_ns=30 * S
        )
        witnessed = (WitnessedHost(heard=heard, ranks=(copy,)),)
        analysis = analyze(build_timeline(replace(noted(of_a, notice=medium), witnessed=witnessed)))
        assert {finding.kind for finding in analysis.verdict[:2]} == {FindingKind.HANG, FindingKind.LOST_HOST}
        assert analysis.verdict[0].kind is first


@pytest.mark.parametrize(
    ("victims", "read_back"),
    [
        pytest.param([0, *range(2, 16_384)], True, id="all others: two ranges"),
        pytest.param(list(range(0, 16_384, 2)), False, id="every second rank: left out"),
    ],
)
def test_an_announcement_does_not_grow_with_the_world(tmp_path: Path, victims: list[int], *, read_back: bool) -> None:
    (tmp_path / "attempt-000").mkdir()
    hang = {**JUDGED, "victims": victims, "evidence": "rank 1 stood; " + 20_000 * "0, 2, "}
    append_notice(tmp_path, replace(NOTICE, judged=announced(hang, before=())))
    assert (tmp_path / "attempt-000" / HANGS_FILE).stat().st_size < 2 * MAX_CHARACTERS
    (notice,) = read_notices(tmp_path)
    noticed = noticed_hang(build_timeline(replace(run(failed(), world_size=16_384), notices=(notice,))))
    assert noticed is not None
    assert (noticed.culprits, list(noticed.victims)) == ((1,), victims if read_back else [])
    assert noticed.evidence.endswith(", ...")


def test_the_same_judgement_is_kept_once() -> None:
    """Each host appends a notice of the same hang."""
    kept = announced(JUDGED, before=())
    first = replace(NOTICE, judged=kept)
    assert announced(JUDGED, before=(first,)) == {}
    assert announced(JUDGED, before=(first, replace(first, at_wall_ns=first.at_wall_ns + S, judged={}))) == {}
    other = replace(first, culprits=(0,), at_wall_ns=first.at_wall_ns + S)
    assert announced(JUDGED, before=(first, other)) == kept
    later = {**JUDGED, "since": SEEN_NS + S}
    assert announced(later, before=(first,))["since"] == SEEN_NS + S
