"""`traincope explain` prints the entry of every kind that a report names."""

from subprocess import CompletedProcess

from tests.cli.forked import traincope
from traincope.explanations import PARTS, explanations


def explain(*kinds: str) -> CompletedProcess[str]:
    return traincope("explain", *kinds)


def test_it_prints_the_four_parts_of_each_kind_once() -> None:
    printed = explain("killed_rank", "killed", "Exposed-transfer").stdout
    assert printed.startswith("A rank was killed  killed_rank, killed\n")
    assert all(printed.count(part) == 2 for part in PARTS)
    assert "Transfers delay compute  exposed_transfer\n" in printed


def test_without_a_kind_it_lists_all() -> None:
    listed = explain().stdout
    assert all(kind in listed for kind in explanations())


def test_an_unknown_kind_is_refused_with_the_nearest_ones() -> None:
    ended = explain("stragler")
    assert ended.returncode == 2
    assert ended.stderr == "traincope explain: unknown kind stragler; straggler? `traincope explain` lists all kinds\n"
