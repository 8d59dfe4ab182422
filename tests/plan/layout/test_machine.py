"""Time of collectives on links, computed by hand."""

from dataclasses import replace

import pytest

from traincope.errors import UsageError
from traincope.plan.layout.communication import Volume
from traincope.plan.layout.machine import Algorithm, Machine, Tier, transfer

NODE, NETWORK = 1e-6, 1e-5
MACHINE = Machine(
    peak_flops=1e12,
    memory_bytes=1,
    ranks_per_node=4,
    node_bytes_per_second=1e9,
    network_bytes_per_second=1e8,
    node_latency_seconds=NODE,
    network_latency_seconds=NETWORK,
    pod_ranks=16,
    spine_share=0.5,
)


def volume(operation: str, ranks: int, num_bytes: int, *, count: int = 1) -> Volume:
    return Volume(axis="dp", operation=operation, what="", ranks=ranks, count=count, num_bytes=num_bytes)


def test_a_ring_within_a_node() -> None:
    """2 (n - 1) steps of 1 us, and 2 (n - 1) / n of the bytes at 1 GB/s."""
    sent = transfer(volume("all_reduce", 4, 4_000_000), machine=MACHINE, span=4, stride=1)
    assert (sent.tier, sent.algorithm) == (Tier.DOMAIN, Algorithm.RING)
    assert sent.seconds == pytest.approx(6 * NODE + 6e-3)


@pytest.mark.parametrize(("torus", "links"), [(False, 3), (True, 2)])
def test_a_group_has_the_links_between_its_ranks(torus: bool, links: int) -> None:
    """Links of 0.25 GB/s: a message has one, four ranks of a mesh have three each, and 2 x 2 of a torus two."""
    machine = replace(MACHINE, pair_bytes_per_second=0.25e9, torus=torus)
    message = transfer(volume("send", 4, 1_000_000), machine=machine, span=4, stride=1)
    assert message.seconds == pytest.approx(NODE + 1e6 / 0.25e9)
    gathered = transfer(volume("all_gather", 4, 4_000_000), machine=machine, span=4, stride=1)
    assert gathered.seconds == pytest.approx(3 * NODE + 3e6 / (links * 0.25e9))


def test_ranks_of_a_node_share_its_network_links() -> None:
    """Eight ranks on two nodes: four rings leave a node at 4 x 0.1 GB/s, and one of seven steps crosses the network."""
    sent = transfer(volume("all_gather", 8, 8_000_000), machine=MACHINE, span=8, stride=1)
    assert sent.tier is Tier.RAIL
    assert sent.seconds == pytest.approx(NETWORK + 6 * NODE + 7e6 / 4e8)


def test_a_group_with_one_rank_per_node_has_one_link() -> None:
    sent = transfer(volume("reduce_scatter", 4, 4_000_000), machine=MACHINE, span=16, stride=4)
    assert sent.seconds == pytest.approx(3 * NETWORK + 3e6 / 1e8)


def test_the_spine_is_slower() -> None:
    near, far = (
        transfer(volume("send", 2, 1_000_000), machine=MACHINE, span=span, stride=span // 2) for span in (16, 32)
    )
    assert (near.tier, far.tier) == (Tier.RAIL, Tier.SPINE)
    assert (near.seconds, far.seconds) == pytest.approx((NETWORK + 1e-2, NETWORK + 2e-2))


def test_a_tree_reduces_small_messages_of_many_nodes_faster() -> None:
    """64 nodes: a ring takes 2 x 63 steps, a tree 2 x 6, with 128 / 126 of the bytes."""
    sent = transfer(volume("all_reduce", 64, 1000), machine=MACHINE, span=256, stride=4)
    assert sent.algorithm is Algorithm.TREE
    assert sent.seconds == pytest.approx(12 * NETWORK + 2000 / 5e7)
    large = transfer(volume("all_reduce", 64, 10**9), machine=MACHINE, span=256, stride=4)
    assert large.algorithm is Algorithm.RING


def test_an_exchange_leaves_the_node_with_the_share_of_other_nodes() -> None:
    """Each of eight ranks on two nodes sends 3 / 8 within its node, at the same time 4 / 8 over its link."""
    sent = transfer(volume("all_to_all", 8, 8_000_000), machine=MACHINE, span=8, stride=1)
    assert sent.algorithm is Algorithm.DIRECT
    assert sent.seconds == pytest.approx(NETWORK + 4e6 / 1e8)


def test_an_impossible_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="spine_share is 0; it must be greater than 0"):
        Machine(peak_flops=1, memory_bytes=1, node_bytes_per_second=1, network_bytes_per_second=1, spine_share=0)


def test_a_ring_between_nodes_is_no_faster_than_a_measured_one() -> None:
    """Two ranks of each of two nodes at 1 GB/s: 2 GB/s, or 0.5. A gather of 8 GB sends 6 GB."""
    machine = Machine(
        peak_flops=1,
        memory_bytes=1,
        ranks_per_node=2,
        node_bytes_per_second=10e9,
        network_bytes_per_second=1e9,
    )
    gather = Volume(axis="dp", operation="all_gather", what="weights", ranks=4, count=1, num_bytes=8 * 10**9)
    for known, rate in ((None, 2e9), (0.5e9, 0.5e9)):
        measured = replace(machine, ring_bytes_per_second=known)
        assert transfer(gather, machine=measured, span=4, stride=1).seconds == pytest.approx(6e9 / rate)
    near = Volume(axis="tp", operation="all_gather", what="activations", ranks=2, count=1, num_bytes=2 * 10**9)
    assert transfer(near, machine=measured, span=2, stride=1).seconds == pytest.approx(1e9 / 10e9)
