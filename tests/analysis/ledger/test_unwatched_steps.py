"""Steps without recorded communication are excluded."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, rank, stall, step, timeline
from traincope.analysis import Analysis, analyze
from traincope.events import Flag, Kind
from traincope.store import RankRecords

STEPS = 12
GROUPS = (group("fsdp", 0, 1),)


def changed(number: int, at_ns: int, *, flags: int = 0) -> Row:
    return Row(kind=Kind.EVENT, start_ns=at_ns, end_ns=at_ns, name="recorder level", group=number, flags=flags)


def recorded(number: int, *rows: Row, watched: range, levels: list[tuple[int, int]]) -> RankRecords:
    """Record 12 steps of 100 ns, the `watched` ones with 40 ns of communication.

    `levels` are the (old, new) levels of each change.
    """
    steps = [step(at, 100 * at, 100 * at + 100) for at in range(STEPS)]
    gathers = [collective(100 * at + 20, 100 * at + 60, sequence=at, at=at) for at in watched]
    stalls = [stall(gather, gather.start_ns, gather.end_ns) for gather in gathers]
    details = {1 + at: {"was": was, "level": level, "why": "so"} for at, (was, level) in enumerate(levels)}
    return replace(rank(number, *steps, *gathers, *stalls, *rows, groups=GROUPS), details=details)


def unwatched_and_exposed(*ranks: RankRecords) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the unwatched steps, and the nonzero exposed terms of rank 0 in the others."""
    analysis: Analysis = analyze(timeline(*ranks, world_size=2))
    (ledger, *_) = analysis.ledger.ranks
    terms = {term: ledger.total(term) or 0 for term in ledger.terms if term.startswith("exposed")}
    return analysis.ledger.unwatched_steps, {term: ns for term, ns in terms.items() if ns}


def test_a_lowered_level_excludes_its_step_and_those_after() -> None:
    lowered = recorded(0, changed(1, 750), watched=range(8), levels=[(1, 0)])
    assert unwatched_and_exposed(lowered) == ((7, 8, 9, 10, 11), {"exposed_transfer[fsdp]": 6 * 40})


def test_a_raised_level_excludes_the_steps_before() -> None:
    raised = recorded(0, changed(1, 500), watched=range(5, 12), levels=[(0, 1)])
    assert unwatched_and_exposed(raised) == ((1, 2, 3, 4), {"exposed_transfer[fsdp]": 7 * 40})


def test_a_level_lowered_and_raised_again_excludes_the_steps_between() -> None:
    rows = (changed(1, 300), changed(2, 350), changed(3, 500))
    again = recorded(0, *rows, watched=range(12), levels=[(2, 1), (1, 0), (0, 2)])
    assert unwatched_and_exposed(again)[0] == (3, 4)


def test_a_step_that_one_rank_did_not_watch_counts_on_no_rank() -> None:
    lowered = recorded(1, changed(1, 1_000), watched=range(10), levels=[(1, 0)])
    assert unwatched_and_exposed(recorded(0, watched=range(12), levels=[]), lowered)[0] == (10, 11)


def test_unwatched_steps_are_kept_if_there_are_no_others() -> None:
    assert unwatched_and_exposed(recorded(0, changed(1, 150), watched=range(1), levels=[(1, 0)])) == ((), {})
    assert unwatched_and_exposed(recorded(0, changed(1, 250), watched=range(2), levels=[(1, 0)]))[0] == tuple(
        range(2, 12)
    )


def test_a_level_lowered_after_the_last_step_excludes_no_step() -> None:
    lowered = recorded(0, changed(1, 1_200), watched=range(12), levels=[(1, 0)])
    assert unwatched_and_exposed(lowered) == ((), {"exposed_transfer[fsdp]": 11 * 40})


def test_an_event_of_the_training_with_that_name_is_ignored() -> None:
    changed_by_user = recorded(0, changed(1, 750, flags=Flag.GIVEN), watched=range(12), levels=[(1, 0)])
    assert unwatched_and_exposed(changed_by_user)[0] == ()


@pytest.mark.parametrize("details", [{}, {"level": 0}, {"level": None, "was": 1}, {"level": "0", "was": "?"}])
def test_damaged_details_are_ignored(details: dict[str, object]) -> None:
    assert (
        unwatched_and_exposed(
            replace(recorded(0, changed(1, 750), watched=range(12), levels=[]), details={1: details})
        )[0]
        == ()
    )
