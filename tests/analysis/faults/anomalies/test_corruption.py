"""Votes of replicas and comparisons between steps, on made checks whose answer is known."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from traincope.analysis.faults.anomalies.corruption import Corruption, StateEvidence, in_order
from traincope.analysis.faults.faults import FaultKind
from traincope.store.job.state_checks import HeldCheck, Layout, StateCheck, StateTensor

CORRUPTED, DIFFER = FaultKind.CORRUPTED_STATE, FaultKind.REPLICAS_DIFFER
NAMES = ("a", "b", "c")


def layout(replicas: Sequence[int], *, states: Sequence[str | None] = (None,)) -> Layout:
    tensors = [
        StateTensor(parameter=name, state=state, dtype="float32", num_bytes=8, replicas=tuple(replicas))
        for name in NAMES
        for state in states
    ]
    return Layout(optimizer=0, tensors=tuple(tensors))


def check(step: int, sums: Sequence[int], of: Layout) -> StateCheck:
    return StateCheck(step=step, at_ns=1_000 * step, cost_ns=1, layout=of, sums=np.array(sums, dtype=np.int64))


def judged(
    steps: Sequence[Mapping[int, Sequence[int]]],
    *,
    replicas: Mapping[int, Sequence[int]] | None = None,
    states: Sequence[str | None] = (None,),
    held: Sequence[tuple[int, int, Mapping[int, int | None]]] = (),
) -> list[Corruption]:
    """`steps`: for each checked step, 0, 10, ..., rank -> its sums. `held`: rank, step and changed tensors."""
    ranks = steps[0].keys()
    layouts = {rank: layout(replicas[rank] if replicas else [*ranks], states=states) for rank in ranks}
    evidence = StateEvidence()
    taken = {
        rank: [check(10 * number, sums[rank], layouts[rank]) for number, sums in enumerate(steps) if rank in sums]
        for rank in ranks
    }
    for together in in_order(taken):
        evidence.add_checks(together)
    for rank, step, changed in held:
        evidence.add_held(
            rank,
            HeldCheck(
                step=step,
                good_ns=1_000 * step,
                at_ns=1_000 * step + 1,
                cost_ns=1,
                layout=layouts[rank],
                changed=changed,
            ),
        )
    return list(evidence.corruptions(lambda _rank, at_ns: at_ns))


GOOD, BAD = (1, 2, 3), (1, 9, 3)


@pytest.mark.parametrize("num_ranks", [3, 4, 8])
def test_most_replicas_outvote_one(num_ranks: int) -> None:
    equal = dict.fromkeys(range(num_ranks), GOOD)
    (named,) = judged([equal, {**equal, 2: BAD}, {**equal, 2: (1, 8, 3)}])
    assert (named.kind, named.ranks, named.step, named.confidence) == (CORRUPTED, (2,), 10, "high")
    assert named.what == f"b on rank 2 differs from its {num_ranks - 1} other replicas"
    assert named.evidence == "equal after step 0, different after step 10"
    assert (named.at_ns, named.good_ns) == (10_000, 0)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_without_a_check_repeats_no_difference(lost: int) -> None:
    """Rank 1 is bad from step 10 on, and another rank ends before step 20."""
    bad = {0: GOOD, 1: BAD, 2: GOOD}
    left = {rank: sums for rank, sums in bad.items() if rank != lost}
    (named,) = judged([dict.fromkeys(range(3), GOOD), bad, left])
    assert (named.ranks, named.step) == ((1,), 10)


def test_a_first_difference_beside_a_missing_check_keeps_its_last_good_one() -> None:
    equal = dict.fromkeys(range(4), GOOD)
    (named,) = judged([equal, {0: GOOD, 1: BAD, 2: GOOD}])
    assert (named.ranks, named.step, named.good_ns) == ((1,), 10, 0)


def test_another_rank_that_goes_bad_beside_a_missing_check_is_named() -> None:
    equal = dict.fromkeys(range(5), GOOD)
    first, second = judged([equal, {**equal, 1: BAD}, {0: (7, 2, 3), 1: BAD, 2: GOOD, 3: GOOD}])
    assert (first.ranks, first.step) == ((1,), 10)
    assert (second.ranks, second.step) == ((0,), 20)


def test_two_replicas_name_the_pair() -> None:
    (named,) = judged([dict.fromkeys((4, 6), GOOD), {4: GOOD, 6: BAD}])
    assert (named.kind, named.ranks, named.step, named.confidence) == (CORRUPTED, (4, 6), 10, "medium")
    assert named.what == "b differs between ranks 4, 6"


def test_a_bit_that_one_of_the_pair_saw_flip_names_it_once() -> None:
    steps = [dict.fromkeys((4, 6), GOOD), {4: GOOD, 6: BAD}]
    (named,) = judged(steps, held=[(6, 0, {1: 17})])
    assert (named.ranks, named.step, named.what) == ((6,), 0, "bit 17 of an element of b (float32) flipped on rank 6")


def test_equal_replicas_are_healthy() -> None:
    assert judged([dict.fromkeys(range(4), GOOD), dict.fromkeys(range(4), BAD)]) == []


def test_the_state_of_one_parameter_goes_bad_together() -> None:
    """A bad average changes its parameter at the next update."""
    good, bad = (1, 2, 3, 4, 5, 6), (1, 2, 8, 9, 5, 6)
    (named,) = judged([dict.fromkeys(range(3), good), {0: good, 1: bad, 2: good}], states=(None, "exp_avg"))
    assert (named.kind, named.ranks, named.what) == (CORRUPTED, (1,), "b on rank 1 differs from its 2 other replicas")


@pytest.mark.parametrize(
    ("sums", "ranks"),
    [
        ({0: GOOD, 1: (7, 9, 3), 2: GOOD}, (1,)),
        ({0: GOOD, 1: BAD, 2: (1, 8, 3)}, (0, 1, 2)),
        ({0: GOOD, 1: BAD, 2: GOOD, 3: BAD}, (0, 1, 2, 3)),
        ({0: GOOD, 1: BAD, 2: GOOD, 3: BAD, 4: GOOD}, (1, 3)),
        ({0: GOOD, 1: (7, 8, 9)}, (0, 1)),
    ],
    ids=["two parameters", "all differ", "no majority", "two ranks", "two parameters of a pair"],
)
def test_what_bad_memory_does_not_do_is_named_as_a_difference(
    sums: Mapping[int, Sequence[int]], ranks: tuple[int, ...]
) -> None:
    (named,) = judged([dict.fromkeys(sums, GOOD), sums])
    assert (named.kind, named.ranks, named.confidence) == (DIFFER, ranks, "medium")


def test_ranks_that_do_not_name_each_other_have_no_vote() -> None:
    assert judged([{0: GOOD, 1: BAD}], replicas={0: (), 1: ()}) == []
    assert judged([{0: GOOD, 1: BAD}], replicas={0: (0, 1), 1: (1,)}) == []


def test_replicas_of_two_axes_vote_together() -> None:
    """Ranks (dp, tp) = 0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1); each names its row and its column only."""
    grid = {0: (0, 1, 2), 1: (0, 1, 3), 2: (0, 2, 3), 3: (1, 2, 3)}
    (named,) = judged([{0: GOOD, 1: GOOD, 2: GOOD, 3: BAD}], replicas=grid)
    assert (named.ranks, named.what) == ((3,), "b on rank 3 differs from its 3 other replicas")
    assert named.evidence == "no earlier check, different after step 0"


@pytest.mark.parametrize(
    "held",
    [
        [(0, 0, {1: None})],
        [(0, 0, {1: 5, 2: 7})],
        [(0, 0, {1: 5}), (0, 10, {1: 6}), (0, 20, {1: 7})],
        [(0, 0, {1: 5}), (1, 0, {1: 5})],
    ],
    ids=["more than a bit", "two tensors", "again and again", "on a replica too"],
)
def test_changes_that_programs_make_are_not_corruption(
    held: Sequence[tuple[int, int, Mapping[int, int | None]]],
) -> None:
    assert judged([dict.fromkeys((0, 1), GOOD)], held=held) == []
