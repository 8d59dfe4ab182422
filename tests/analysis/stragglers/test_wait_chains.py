"""Wait chains from axis to axis, computed by hand: (waiting rank, rank waited for, axis) -> ns."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from traincope.analysis.stragglers.wait_chains import Waiting, follow_wait_chains


def test_a_rank_that_did_not_wait_is_its_own_culprit() -> None:
    waiting = {(0, 2, "dp"): 30, (1, 2, "dp"): 30}
    assert follow_wait_chains(waiting) == waiting


def test_a_wait_moves_to_the_rank_that_the_late_rank_waited_for() -> None:
    """dp 2 x tp 2: rank 3 is 80 late for rank 2, and both are late for their peers in the other replica."""
    direct = {(2, 3, "tp"): 80, (0, 2, "dp"): 80, (1, 3, "dp"): 80}
    assert follow_wait_chains(direct) == {(2, 3, "tp"): 80, (0, 3, "dp"): 80, (1, 3, "dp"): 80}


def test_all_waiting_of_many_replicas_is_for_the_one_slow_rank() -> None:
    """dp 4 x tp 8: of the 31 waiting ranks, 21 wait for its peers."""
    slow = 5
    direct = {(rank, slow, "tp"): 80 for rank in range(8) if rank != slow}
    direct |= {(8 * replica + place, place, "dp"): 80 for replica in range(1, 4) for place in range(8)}
    assert sum(late != slow for _, late, _ in direct) == 21
    assert [(late, ns) for (_, late, _), ns in follow_wait_chains(direct).items()] == [(slow, 80)] * 31


def test_a_wait_chain_over_several_axes_is_followed_to_its_end() -> None:
    direct = {(2, 3, "tp"): 80, (1, 2, "dp"): 80, (0, 1, "cp"): 80}
    assert follow_wait_chains(direct) == {(2, 3, "tp"): 80, (1, 3, "dp"): 80, (0, 3, "cp"): 80}


def test_equal_waiting_delays_neither_rank_relative_to_the_other() -> None:
    """Ranks 0 and 1 wait 80 for rank 2; then rank 1 is 20 late by itself."""
    direct = {(0, 2, "dp"): 80, (1, 2, "dp"): 80, (0, 1, "dp"): 20}
    assert follow_wait_chains(direct) == direct


def test_lateness_above_a_ranks_own_wait_is_its_own() -> None:
    """Rank 2 waits 50 for rank 3, and is another 30 late when rank 0 waits for it."""
    assert follow_wait_chains({(2, 3, "tp"): 50, (0, 2, "dp"): 80}) == {
        (2, 3, "tp"): 50,
        (0, 3, "dp"): 50,
        (0, 2, "dp"): 30,
    }


def test_ranks_that_wait_for_each_other_are_their_own_culprits() -> None:
    turns = {(0, 1, "dp"): 40, (1, 0, "dp"): 40}
    assert follow_wait_chains(turns) == turns


RANKS = st.integers(0, 5)
KEYS = st.tuples(RANKS, RANKS, st.sampled_from(["dp", "tp"])).filter(lambda key: key[0] != key[1])


@given(st.dictionaries(KEYS, st.integers(1, 1000)))
def test_wait_is_conserved_by_axis_and_no_rank_waits_for_itself(direct: Waiting) -> None:
    def waited(waiting: Waiting) -> Counter[tuple[int, str]]:
        return sum((Counter({(rank, axis): ns}) for (rank, _, axis), ns in waiting.items()), Counter())

    followed = follow_wait_chains(direct)
    assert waited(followed) == waited(direct)
    assert all(rank != late and ns > 0 for (rank, late, _), ns in followed.items())
