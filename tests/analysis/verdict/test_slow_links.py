"""Findings about communication and late ranks name the links that have faults, if the ranks use them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.analysis.lockstep import ENOUGH, lockstep
from tests.timeline.build import Row, timeline
from traincope.analysis import Finding, analyze
from traincope.events import LINK_ERRORS, Kind
from traincope.topology import Host

MS = 1_000_000
TCP = {"port": "TCP", "counts": {"retransmitted segments": 2_310}, "sent_packets": 100_000, "seconds": 0.1}
CABLE = {"port": "mlx5_0/1", "counts": {"symbol_error": 400}, "sent_packets": None, "seconds": 0.1}
LOSSES = "TCP on host b: 2,310 segments sent again (2.3 % of those sent)"


def job(
    work: Sequence[Sequence[int]], *, hosts: str, transfer_ns: int, errors: dict[str, object] | None = None, on: int = 1
) -> tuple[Finding, ...]:
    """Ranks in lockstep on these hosts; `on`: the rank that recorded the errors of its host."""
    end_ns = sum(max(each) + transfer_ns for each in work)
    grew = Row(kind=Kind.EVENT, start_ns=end_ns, end_ns=end_ns, name=LINK_ERRORS, group=7, thread="thread-1")
    ranks = lockstep(work, transfer_ns=transfer_ns, also={} if errors is None else {on: [grew]})
    placed = [
        replace(each, info=replace(each.info, host=Host(name=hosts[each.rank], boot_id="boot"))) for each in ranks
    ]
    if errors is not None:
        placed[on] = replace(placed[on], details={7: errors})
    return analyze(timeline(*placed)).verdict


def test_a_slow_transfer_names_host_and_port() -> None:
    (finding,) = job([[60 * MS, 60 * MS]] * 30, hosts="ab", transfer_ns=40 * MS, errors=TCP)
    assert finding.kind == "exposed_transfer"
    assert f"; {LOSSES} (counted by the kernel (retransmitted segments) within 100 ms)" in finding.evidence
    assert finding.advice.startswith("Find where the packets are lost: compare the counts of both ends")
    assert finding.estimated_gain_ratio == pytest.approx(0.4)


def test_a_sound_link_is_not_mentioned() -> None:
    few = TCP | {"counts": {"retransmitted segments": 12}}
    for errors in (None, few):
        (finding,) = job([[60 * MS, 60 * MS]] * 30, hosts="ab", transfer_ns=40 * MS, errors=errors)
        assert "TCP" not in finding.evidence
        assert finding.advice.startswith("Overlap")


def test_a_group_within_one_host_does_not_use_its_ports() -> None:
    (finding,) = job([[60 * MS, 60 * MS]] * 30, hosts="bb", transfer_ns=40 * MS, errors=TCP)
    assert LOSSES not in finding.evidence


def test_a_late_rank_with_a_bad_link_of_its_own_says_perhaps() -> None:
    (finding,) = job([[60 * MS, 90 * MS, 60 * MS]] * ENOUGH, hosts="abc", transfer_ns=MS, errors=CABLE)
    assert (finding.kind, finding.ranks) == ("straggler", (1,))
    assert "perhaps by a link: port mlx5_0/1 of host b: 400 symbol errors" in finding.evidence


def test_a_link_that_its_peers_use_too_does_not_explain_a_late_rank() -> None:
    (finding,) = job([[60 * MS, 90 * MS, 60 * MS]] * ENOUGH, hosts="abb", transfer_ns=MS, errors=CABLE)
    assert (finding.kind, finding.ranks) == ("straggler", (1,))
    assert "link" not in finding.evidence


def test_a_run_that_loses_no_time_still_has_the_fault() -> None:
    (finding,) = job([[99 * MS, 99 * MS]] * 30, hosts="ab", transfer_ns=MS, errors=TCP)
    assert (finding.kind, finding.ranks) == ("faults", (1,))
    assert finding.evidence.endswith(f"but there are faults: {LOSSES}")
