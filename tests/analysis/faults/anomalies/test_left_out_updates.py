"""Updates that a rank leaves out after DDP has reduced the gradients: it trains another model from then on."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.timeline.build import collective, group, phase, rank, stall, step, timeline
from traincope.analysis import Finding, analyze
from traincope.events import ELEMENT_SHIFT, ZEROING, Element, Phase
from traincope.store import RankRecords

MS = 1_000_000
FLOAT32 = int(Element.FLOAT32) << ELEMENT_SHIFT
STEPS, WINDOW = 15, 5
Steps = Collection[int]


def of_rank(number: int, left_out: Steps, *, ranks: int) -> RankRecords:
    """Record backwards of 100 ms. The rank counts a step for each update, and windows of 5 of its own steps."""
    rows, steps, began, windows = [], 0, 0, {0: (0, 1)}
    for backward in range(STEPS):
        at = 100 * MS * backward
        window = steps // WINDOW * WINDOW
        first, tag = windows.setdefault(window, (backward, backward + 1))
        rows += [
            phase(Phase.FORWARD, at, at + 5 * MS, at=steps),
            phase(Phase.BACKWARD, at + 6 * MS, at + 50 * MS, at=steps),
        ]
        one = collective(
            at + 40 * MS, at + 45 * MS, name="all_reduce", sequence=backward - first, at=steps, num_bytes=4_000
        )
        one = replace(one, window=window, tag=tag if backward == first else 0, flags=FLOAT32)
        rows += [one, stall(one, at + 40 * MS, at + 45 * MS)]
        rows.append(replace(phase(Phase.OPTIMIZER, at + 51 * MS, at + 52 * MS, at=steps), name=ZEROING))
        if backward not in left_out:
            rows.append(phase(Phase.OPTIMIZER, at + 80 * MS, at + 90 * MS, at=steps))
            rows.append(step(steps, began, at + 99 * MS))
            steps, began = steps + 1, at + 99 * MS
    made = rank(number, *rows, groups=[replace(group("dp", *range(ranks)), rule="wrapper")])
    return replace(made, info=replace(made.info, issued_collectives={made.groups[0].key: STEPS}))


def verdict(*left_out: Steps) -> tuple[Finding, ...]:
    ranks = [of_rank(number, each, ranks=len(left_out)) for number, each in enumerate(left_out)]
    return analyze(timeline(*ranks)).verdict


@pytest.mark.parametrize(
    ("left_out", "ranks", "evidence", "confidence"),
    [
        (((), (6, 9), ()), (1,), "rank 1 left out 2, first that of step 6", "high"),
        (((), (6,)), (1,), "rank 1 left out 1, first that of step 6", "medium"),
        (((3, 6), (3, 6), ()), (2,), "ranks 0, 1 left out 2, first that of step 3", "high"),
        (
            ((3, 6), (3, 6), (), (3,)),
            (0, 1, 3),
            "ranks 0, 1 left out 2, rank 3 left out 1, first that of step 3",
            "high",
        ),
    ],
)
def test_the_ranks_that_left_out_updates_are_named(
    left_out: tuple[Steps, ...], ranks: tuple[int, ...], evidence: str, confidence: str
) -> None:
    """Most ranks are right. Without a majority, those that left out most or some are named."""
    first = verdict(*left_out)[0]
    assert (first.kind, first.ranks, first.confidence) == ("replicas_differ", ranks, confidence)
    assert f"of 14 updates by gradients that DDP had reduced, {evidence}" in first.evidence


@pytest.mark.parametrize("left_out", [((), ()), ((6, 9), (6, 9)), ((), (STEPS - 1,))])
def test_updates_that_all_ranks_take_or_leave_out_are_right(left_out: tuple[Steps, ...]) -> None:
    """The last one may not have come yet."""
    assert all(finding.kind not in ("replicas_differ", "mismatch") for finding in verdict(*left_out))


def test_steps_that_a_rank_counts_from_another_place_are_no_mismatch() -> None:
    assert all(finding.kind != "mismatch" for finding in verdict((), (6, 9), ()))


def test_a_rank_that_never_updates_is_not_a_replica() -> None:
    """As the ranks of an optimizer that one rank runs for all."""
    assert all(finding.kind != "replicas_differ" for finding in verdict((), tuple(range(STEPS))))
