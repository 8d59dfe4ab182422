"""Hosts, racks and rails whose ranks are nearly all stragglers."""

from dataclasses import replace

import pytest

from tests.timeline.build import rank, run
from traincope.analysis.stragglers.slow_groups import GroupKind, SlowGroup, slow_groups
from traincope.store import RunRecords
from traincope.topology import Host

RACKS = {"a": "left", "b": "left", "c": "right", "d": "right"}


def job(*, racks: object = None, per_host: int = 4) -> RunRecords:
    """Hosts a to d with ranks 0 to 3, 4 to 7, and so on."""
    ranks = []
    for number in range(4 * per_host):
        host = Host(name="abcd"[number // per_host], boot_id="abcd"[number // per_host])
        made = rank(number)
        ranks.append(replace(made, info=replace(made.info, host=host)))
    made_run = run(*ranks)
    return replace(made_run, info=replace(made_run.info, settings={} if racks is None else {"racks": racks}))


def group(kind: GroupKind, name: str, *ranks: int, size: int = 4) -> SlowGroup:
    return SlowGroup(kind=kind, name=name, ranks=ranks, size=size)


@pytest.mark.parametrize(
    ("stragglers", "expected"),
    [
        ([4, 5, 6, 7], [group(GroupKind.HOST, "b", 4, 5, 6, 7)]),
        ([4, 5, 7], [group(GroupKind.HOST, "b", 4, 5, 7)]),
        ([4, 5], []),
        ([4, 5, 6, 7, 9], [group(GroupKind.HOST, "b", 4, 5, 6, 7)]),
        ([2, 6, 10, 14], [group(GroupKind.RAIL, "2", 2, 6, 10, 14)]),
        ([2, 6, 10], [group(GroupKind.RAIL, "2", 2, 6, 10)]),
        ([2, 7, 9, 12], []),
        ([], []),
    ],
)
def test_nearly_all_ranks_of_a_host_or_rail_are_one_group(stragglers: list[int], expected: list[SlowGroup]) -> None:
    assert slow_groups(job(), stragglers) == tuple(expected)


def test_racks_are_those_that_the_training_declares() -> None:
    left = list(range(8))
    assert [each.kind for each in slow_groups(job(), left)] == [GroupKind.HOST, GroupKind.HOST]
    assert slow_groups(job(racks=RACKS), left) == (group(GroupKind.RACK, "left", *left, size=8),)
    assert slow_groups(job(racks=RACKS), [4, 5, 6, 7]) == (group(GroupKind.HOST, "b", 4, 5, 6, 7),)


@pytest.mark.parametrize("racks", ["left", ["left"], {"a": 1, "b": 1}, {}])
def test_a_wrong_declaration_names_no_rack(racks: object) -> None:
    assert {each.kind for each in slow_groups(job(racks=racks), range(8))} == {GroupKind.HOST}


def test_a_host_with_one_rank_is_no_group() -> None:
    assert slow_groups(job(per_host=1), [2]) == ()
