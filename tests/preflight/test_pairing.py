"""Pairings, by counting: each rank has one partner at a time, and each pair meets once."""

from itertools import combinations

import pytest

from traincope.preflight.pairing import ALL_PAIRS_RANKS, all_pairs, first_round, pairings, second_round


@pytest.mark.parametrize("ranks", range(2, ALL_PAIRS_RANKS + 1))
def test_all_pairs_of_a_small_job_meet_once(ranks: int) -> None:
    made = first_round(ranks, [])
    assert len(made) == ranks - 1 + ranks % 2
    for pairing in made:
        met = [rank for pair in pairing for rank in pair]
        assert len(met) == len(set(met))
    assert sorted(pair for pairing in made for pair in pairing) == list(combinations(range(ranks), 2))


def test_four_ranks_go_round_the_table() -> None:
    assert all_pairs(4) == (((0, 3), (1, 2)), ((0, 1), (2, 3)), ((0, 2), (1, 3)))


def test_one_rank_has_no_pair() -> None:
    assert first_round(1, []) == ()


def test_a_large_job_measures_the_neighbours_on_its_axes() -> None:
    ring = [(rank, (rank + 1) % 64) for rank in range(64)]
    assert len(first_round(64, ring)) == 2
    assert sorted(pair for pairing in first_round(64, ring) for pair in pairing) == sorted(
        (min(pair), max(pair)) for pair in ring
    )


def test_a_rank_is_in_one_pair_of_a_pairing() -> None:
    assert pairings([(1, 0), (1, 2), (3, 2), (0, 1)]) == (((0, 1), (2, 3)), ((1, 2),))


def test_the_second_round_repeats_suspects_and_gives_both_ranks_other_partners() -> None:
    again = {
        pair for pairing in second_round(list(combinations(range(6), 2)), [(1, 4)], hosts="aaaaaa") for pair in pairing
    }
    assert (1, 4) in again
    assert {pair for pair in again if 1 in pair} == {(1, 4), (0, 1), (1, 2), (1, 3)}
    assert {pair for pair in again if 4 in pair} == {(1, 4), (0, 4), (2, 4), (3, 4)}


def test_without_suspects_there_is_no_second_round() -> None:
    assert second_round([(0, 1)], [], hosts="ab") == ()
