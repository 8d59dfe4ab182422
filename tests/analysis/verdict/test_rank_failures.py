"""Ranks that finish before the others: the others' error follows from that."""

from dataclasses import replace

from tests.analysis.faults.test_faults import note, noted
from tests.timeline.build import group, phase, rank, step, timeline
from traincope.analysis import analyze
from traincope.events import OPEN, Phase
from traincope.store import RankRecords

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
