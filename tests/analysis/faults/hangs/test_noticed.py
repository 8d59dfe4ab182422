"""Hangs that an agent announced: its answer counts where the end of the job hides the culprit."""

from dataclasses import replace
from typing import Any

import pytest

from tests.analysis.faults.hangs.test_stops import LAST_NS, MS, NUM_STEPS, SEEN_NS, STOP_NS, WORLD, S, stuck, victim
from tests.analysis.faults.test_lost_hosts import B
from tests.timeline.build import phase, rank, run, step
from traincope.analysis import FaultKind, FindingKind, HangKind, analyze
from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.hangs.noticed import NOTED
from traincope.events import OPEN, Phase
from traincope.report import hang_document
from traincope.store import RankRecords, RunRecords
from traincope.store.job.hang_notices import HangNotice
from traincope.store.job.witness import Heard
from traincope.store.reading import WitnessedHost
from traincope.timeline import build_timeline

SEEN = analyze(build_timeline(run(victim(0), stuck(1))))
"""The job during the hang, as the agent judged it."""
JUDGED: dict[str, Any] = dict(hang_document(SEEN.hangs, SEEN.verdict[:1])["hangs"][0])
NOTICE = HangNotice(attempt=0, at_wall_ns=SEEN_NS + S, culprits=(1,), sentence="hang", judged=JUDGED)


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


def noted(*ranks: RankRecords, notice: HangNotice = NOTICE) -> RunRecords:
    return replace(run(*ranks, world_size=2), notices=(notice,))


def test_a_later_death_is_a_consequence_of_the_announced_hang() -> None:
    """The host of rank 0 alone: rank 1 left no records there."""
    analysis = analyze(build_timeline(noted(failed())))
    (hang,) = analysis.hangs
    (before,) = SEEN.hangs
    assert hang == replace(before, evidence=f"{before.evidence}; {NOTED}")
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
    ],
    ids=["of an earlier version", "an unknown kind", "damaged", "without a culprit"],
)
def test_an_announcement_that_names_no_hang_changes_nothing(notice: HangNotice) -> None:
    assert analyze(build_timeline(noted(failed(), notice=notice))).hangs == ()


def test_a_hang_that_ended_by_itself_explains_no_later_end() -> None:
    analysis = analyze(build_timeline(noted(failed(after=1))))
    assert (analysis.hangs, analysis.verdict[0].kind) == ((), FindingKind.FAILED_RANK)


def test_records_that_still_show_the_culprit_count() -> None:
    """The records of all hosts: they know more than one agent did."""
    wrong = replace(NOTICE, culprits=(0,))
    assert analyze(build_timeline(noted(victim(0), stuck(1), notice=wrong))).hangs == SEEN.hangs


def test_a_hang_that_began_after_the_announcement_is_a_consequence() -> None:
    """The announced hang is of 10 s; its end left rank 0 waiting for rank 1 for 34 s more."""
    early = replace(NOTICE, judged={**JUDGED, "kind": "left", "since": LAST_NS - 20 * S, "lasted_ns": 10 * S})
    (hang,) = analyze(build_timeline(noted(victim(0), stuck(1), notice=early))).hangs
    assert (hang.kind, hang.since_ns) == (HangKind.LEFT, LAST_NS - 20 * S)


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
