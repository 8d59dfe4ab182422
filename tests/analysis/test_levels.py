"""Steps in which nothing of communication was recorded enter no share of it."""

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
    """12 steps of 100 ns, those watched with 40 of communication; `levels`: (was, level) of each change."""
    steps = [step(at, 100 * at, 100 * at + 100) for at in range(STEPS)]
    gathers = [collective(100 * at + 20, 100 * at + 60, sequence=at, at=at) for at in watched]
    stalls = [stall(one, one.start_ns, one.end_ns) for one in gathers]
    details = {1 + at: {"was": was, "level": level, "why": "so"} for at, (was, level) in enumerate(levels)}
    return replace(rank(number, *steps, *gathers, *stalls, *rows, groups=GROUPS), details=details)


def found(*ranks: RankRecords) -> tuple[tuple[int, ...], dict[str, int]]:
    """Steps left out for that, and of what is left the terms of rank 0 with a collective."""
    analysis: Analysis = analyze(timeline(*ranks, world_size=2))
    (ledger, *_) = analysis.ledger.ranks
    terms = {term: ledger.total(term) or 0 for term in ledger.terms if term.startswith("exposed")}
    return analysis.ledger.unwatched_steps, {term: ns for term, ns in terms.items() if ns}


def test_a_level_that_is_lowered_leaves_the_steps_after_out_and_the_one_it_is_lowered_in() -> None:
    lowered = recorded(0, changed(1, 750), watched=range(8), levels=[(1, 0)])
    assert found(lowered) == ((7, 8, 9, 10, 11), {"exposed_transfer[fsdp]": 6 * 40})


def test_a_level_that_is_raised_leaves_the_steps_before_out() -> None:
    raised = recorded(0, changed(1, 500), watched=range(5, 12), levels=[(0, 1)])
    assert found(raised) == ((1, 2, 3, 4), {"exposed_transfer[fsdp]": 7 * 40})


def test_lowered_and_raised_again() -> None:
    rows = (changed(1, 300), changed(2, 350), changed(3, 500))
    again = recorded(0, *rows, watched=range(12), levels=[(2, 1), (1, 0), (0, 2)])
    assert found(again)[0] == (3, 4)


def test_a_step_counts_on_no_rank_where_one_did_not_watch_it() -> None:
    lowered = recorded(1, changed(1, 1_000), watched=range(10), levels=[(1, 0)])
    assert found(recorded(0, watched=range(12), levels=[]), lowered)[0] == (10, 11)


def test_where_no_step_but_the_first_was_watched_none_is_left_out() -> None:
    assert found(recorded(0, changed(1, 150), watched=range(1), levels=[(1, 0)])) == ((), {})
    assert found(recorded(0, changed(1, 250), watched=range(2), levels=[(1, 0)]))[0] == tuple(range(2, 12))


def test_a_level_that_is_lowered_after_the_last_step_leaves_none_out() -> None:
    lowered = recorded(0, changed(1, 1_200), watched=range(12), levels=[(1, 0)])
    assert found(lowered) == ((), {"exposed_transfer[fsdp]": 11 * 40})


def test_what_a_training_calls_by_that_name_says_nothing() -> None:
    told = recorded(0, changed(1, 750, flags=Flag.GIVEN), watched=range(12), levels=[(1, 0)])
    assert found(told)[0] == ()


@pytest.mark.parametrize("details", [{}, {"level": 0}, {"level": None, "was": 1}, {"level": "0", "was": "?"}])
def test_a_damaged_file_of_details_says_nothing(details: dict[str, object]) -> None:
    assert found(replace(recorded(0, changed(1, 750), watched=range(12), levels=[]), details={1: details}))[0] == ()
