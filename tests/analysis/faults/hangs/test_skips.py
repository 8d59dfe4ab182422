"""Collectives left out between two windows, by torch's counts, in runs made by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, rank, run, step
from traincope.analysis import Hang, HangKind, analyze
from traincope.events import Flag
from traincope.store import RankRecords
from traincope.timeline import build_timeline

MS = 1_000_000
STEP_NS = 100 * MS
WINDOWS, LENGTH = (0, 28, 56), 7
STEPS = 63
BARRIER = "monitored_barrier"
EVERY = 2
"""Collectives per step."""


def training(
    number: int,
    *,
    size: int = 2,
    issued: Sequence[int] = (),
    left_out: int | None = None,
    early: int = 0,
    monitored: bool = False,
    ending: str | None = "clean",
) -> RankRecords:
    """A rank that issues two all-reduces per step, and `early` more before the first step.

    `issued`: how many more or fewer than usual it has issued so far, at each window. `left_out`: the step with detail
    whose last one it leaves out. `monitored`: one step with detail has a monitored barrier after its all-reduces.
    """
    rows: list[Row] = []
    for at in range(STEPS):
        window = next((first for first in WINDOWS if first <= at < first + LENGTH), None)
        rows.append(step(at, at * STEP_NS, (at + 1) * STEP_NS, flags=0 if window is None else Flag.DETAILED))
        for place in range(EVERY - (at == left_out)) if window is not None else ():
            begin = at * STEP_NS + (10 + 20 * place) * MS
            row = collective(begin, begin + 9 * MS, name="all_reduce", sequence=(at - window) * EVERY + place, at=at)
            moved = dict(zip(WINDOWS, issued or (0, 0, 0), strict=True))[window]
            count = 1 + early + at * EVERY + moved if (at, place) == (window, 0) else 0
            rows.append(replace(row, window=window, tag=count))
            if monitored and (at, place) == (LENGTH - 1, EVERY - 1):
                rows.append(collective(begin + 10 * MS, begin + 11 * MS, name=BARRIER, sequence=EVERY * LENGTH, at=at))
    return rank(number, *rows, groups=[group("dp", *range(size))], ending=ending)


def hangs(*ranks: RankRecords) -> tuple[Hang, ...]:
    return analyze(build_timeline(run(*ranks))).hangs


@pytest.mark.parametrize(("issued", "named"), [(-1, "41"), (1, "43")])
def test_of_two_ranks_the_one_that_departs_from_the_habit_is_named(issued: int, named: str) -> None:
    """Between steps 6 and 28, 21 steps without detail issue 42. The counts began at different numbers."""
    (hang,) = hangs(training(0, early=5), training(1, issued=(0, issued, issued)))
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.MISMATCH, (1,), (0,), "medium")
    assert hang.step is None
    assert hang.evidence == (f"on dp, between steps 6 and 28; rank 0 issued 42 collectives, and rank 1 {named}")


def test_of_more_ranks_the_majority_decides() -> None:
    odd = training(2, size=3, issued=(0, 0, -2))
    (hang,) = hangs(*(training(number, size=3, ending="RuntimeError") for number in (0, 1)), odd)
    assert hang.culprits == (2,)
    assert hang.evidence == "on dp, between steps 28 and 56; ranks 0, 1 issued 56 collectives, and rank 2 54"


def test_one_that_is_left_out_at_the_end_of_a_window_shows_in_the_next() -> None:
    (hang,) = hangs(training(0), training(1, left_out=34, issued=(0, 0, -1), ending="RuntimeError"))
    assert hang.culprits == (1,)
    assert hang.evidence == "on dp, between steps 28 and 56; rank 0 issued 56 collectives, and rank 1 55"


def test_a_difference_that_a_later_window_evens_out_is_a_border_that_ranks_see_apart() -> None:
    assert hangs(training(0), training(1, issued=(0, -1, 0))) == ()


def test_the_last_window_alone_shows_nothing_if_all_ranks_ended_well() -> None:
    assert hangs(training(0), training(1, issued=(0, 0, -1))) == ()
    (hang,) = hangs(training(0, ending="RuntimeError"), training(1, issued=(0, 0, -1)))
    assert hang.culprits == (1,)


def test_ranks_that_both_depart_from_the_habit_are_not_named() -> None:
    assert not any(hang.culprits for hang in hangs(training(0, issued=(0, 1, 1)), training(1, issued=(0, -1, -1))))


@pytest.mark.parametrize(("more", "culprits"), [(4, []), (8, []), (3, [(0,)]), (-4, [(0,)])])
def test_monitored_barriers_in_steps_without_detail_name_no_rank(more: int, culprits: list[tuple[int, ...]]) -> None:
    """In each barrier of four ranks, torch counts six messages on the first rank and two on each other one."""
    first = training(0, size=4, issued=(0, more, more))
    others = [training(number, size=4) for number in (1, 2, 3)]
    assert [hang.culprits for hang in hangs(first, *others)] == culprits


@pytest.mark.parametrize("monitored", [False, True])
def test_a_group_with_monitored_barriers_has_no_common_count(monitored: bool) -> None:
    """Barriers alone do not explain five collectives more, but torch's counts are not of the same things then."""
    first = training(0, size=4, issued=(0, 5, 5), monitored=monitored)
    others = [training(number, size=4, monitored=monitored) for number in (1, 2, 3)]
    assert [hang.culprits for hang in hangs(first, *others)] == ([] if monitored else [(0,)])


@pytest.mark.parametrize(("at_the_end", "culprits"), [((126, 126), []), ((126, 125), [(1,)])])
def test_equal_counts_of_ranks_that_ended_well_show_that_none_was_left_out(
    at_the_end: tuple[int, int], culprits: list[tuple[int, ...]]
) -> None:
    """Rank 1 may begin its steps, and so its windows, at other places: it leaves out an update, and no collective."""
    ranks = [training(0), training(1, issued=(0, -1, -1))]
    counted = [
        replace(each, info=replace(each.info, issued_collectives={each.groups[0].key: count}))
        for each, count in zip(ranks, at_the_end, strict=True)
    ]
    assert [hang.culprits for hang in hangs(*counted)] == culprits
