"""Ranks and links that two rounds name, from measurements made by hand."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preflight.made import with_pairs, with_rates
from traincope.preflight.judging.findings import Kind
from traincope.preflight.judging.links import link_findings
from traincope.preflight.judging.ranks import slow_rank_findings

HOSTS = {"one host": ["a"] * 6, "a host each": list("abcdef")}


def named(measured) -> list[tuple[Kind, tuple[int, ...]]]:  # type: ignore[no-untyped-def]
    return [(finding.kind, finding.ranks) for finding in link_findings(measured)]


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("link", list(combinations(range(6), 2)))
def test_a_slow_link_is_named_and_its_ranks_are_not(hosts: list[str], link: tuple[int, int]) -> None:
    assert named(with_pairs(hosts, lambda pair: 5.0 if pair == link else 1.0)) == [(Kind.SLOW_LINK, link)]


@pytest.mark.parametrize("size", [3, 4, 6, 12, 13, 40])
def test_a_rank_that_is_slow_with_all_is_named_and_its_links_are_not(size: int) -> None:
    for rank in (0, size // 2, size - 1):
        measured = with_pairs(["a"] * size, lambda pair, slow=rank: 5.0 if slow in pair else 1.0)  # type: ignore[misc]
        assert named(measured) == [(Kind.SLOW_MESSAGES, (rank,))]


NODE = 8
MESH = [(rank, rank + NODE) for rank in range(NODE)] + [
    (first + rank, first + (rank + 1) % NODE) for first in (0, NODE) for rank in range(NODE)
]
"""Neighbours of two hosts with 8 ranks each, dp 2 between them and tp 8 within."""


@pytest.mark.parametrize("slow", range(2 * NODE))
def test_a_slow_nic_in_a_large_job_is_named_and_the_other_host_is_not(slow: int) -> None:
    measured = with_pairs(
        ["a"] * NODE + ["b"] * NODE,
        lambda pair: 5.0 if slow in pair and (pair[0] < NODE) != (pair[1] < NODE) else 1.0,
        neighbours=MESH,
    )
    assert named(measured) == [(Kind.SLOW_MESSAGES, (slow,))]


@pytest.mark.parametrize("link", sorted({(min(each), max(each)) for each in MESH}))
def test_a_slow_link_in_a_large_job_is_named_and_its_ranks_are_fast_with_others(link: tuple[int, int]) -> None:
    measured = with_pairs(["a"] * NODE + ["b"] * NODE, lambda pair: 5.0 if pair == link else 1.0, neighbours=MESH)
    (finding,) = link_findings(measured)
    assert (finding.kind, finding.ranks) == (Kind.SLOW_LINK, link)
    assert finding.evidence.endswith("; each of them is fast with others")


def test_a_slow_link_between_the_only_ranks_of_a_host_is_not_compared_with_others() -> None:
    (finding,) = link_findings(with_pairs(list("aabbccdd"), lambda pair: 5.0 if pair == (0, 1) else 1.0))
    assert finding.ranks == (0, 1)
    assert finding.evidence.endswith("; no other pair within a host of ranks 0, 1 was measured in the second round")


def test_a_slow_rank_and_a_slow_link_are_both_named() -> None:
    measured = with_pairs(["a"] * 8, lambda pair: 5.0 if 2 in pair else 4.0 if pair == (5, 7) else 1.0)
    assert named(measured) == [(Kind.SLOW_MESSAGES, (2,)), (Kind.SLOW_LINK, (5, 7))]


def test_two_slow_ranks_are_named() -> None:
    measured = with_pairs(["a"] * 8, lambda pair: 5.0 if {1, 6} & set(pair) else 1.0)
    assert sorted(named(measured)) == [(Kind.SLOW_MESSAGES, (1,)), (Kind.SLOW_MESSAGES, (6,))]


def test_two_links_of_a_rank_do_not_make_it_slow() -> None:
    measured = with_pairs(["a"] * 8, lambda pair: 5.0 if pair in {(0, 1), (0, 2)} else 1.0)
    assert named(measured) == [(Kind.SLOW_LINK, (0, 1)), (Kind.SLOW_LINK, (0, 2))]


def test_a_host_with_a_slow_network_is_slow_between_hosts_only() -> None:
    hosts = ["a", "a", "b", "b", "c", "c", "d", "d"]
    measured = with_pairs(hosts, lambda pair: 5.0 if sum(rank in (2, 3) for rank in pair) == 1 else 1.0)
    assert named(measured) == [(Kind.SLOW_MESSAGES, (2,)), (Kind.SLOW_MESSAGES, (3,))]
    assert all("between hosts" in finding.evidence for finding in link_findings(measured))


def test_pairs_of_two_hosts_are_not_compared_with_pairs_within_one() -> None:
    hosts = ["a", "a", "a", "b", "b", "b"]
    assert named(with_pairs(hosts, lambda pair: 8.0 if (pair[0] < 3) != (pair[1] < 3) else 1.0)) == []


def test_what_only_the_first_round_shows_is_not_named() -> None:
    assert named(with_pairs(["a"] * 6, lambda _: 1.0, first_only=lambda pair: 9.0 if 3 in pair else 1.0)) == []


def test_two_ranks_cannot_be_compared() -> None:
    assert named(with_pairs(["a"] * 2, lambda _: 50.0)) == []


@given(st.integers(2, 30), st.randoms(use_true_random=False))
def test_a_healthy_job_has_no_name(size: int, rng) -> None:  # type: ignore[no-untyped-def]
    hosts = sorted(rng.choice("abc") for _ in range(size))
    assert named(with_pairs(hosts, lambda _: rng.uniform(1.0, 1.6))) == []


def test_a_rank_that_multiplies_slowly_in_both_rounds_is_named() -> None:
    (finding,) = slow_rank_findings(with_rates([1, 1, 1, 2], [1, 1, 1, 1.8]))
    assert (finding.kind, finding.ranks, finding.factor) == (Kind.SLOW_PRODUCTS, (3,), pytest.approx(1.8))


def test_a_rank_that_multiplies_slowly_in_one_round_is_not_named() -> None:
    assert list(slow_rank_findings(with_rates([1, 1, 1, 2], [1, 1, 1, 1]))) == []
    assert list(slow_rank_findings(with_rates([1, 1, 1, 2], [2, 1, 1, 1]))) == []
