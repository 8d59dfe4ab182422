"""Lost hosts, from what a witness noted and from what the job shows, in runs made by hand."""

from dataclasses import replace

import pytest

from tests.analysis.faults.hangs.test_stops import FAULTY, WAITING, looked
from tests.timeline.build import Row, clock, collective, group, phase, rank, run, step
from traincope.analysis import FaultKind, FindingKind, HangKind, analyze
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.lost_hosts import lost_hosts
from traincope.analysis.verdict.findings import Finding
from traincope.analysis.verdict.verdict import in_order_of_cause
from traincope.events import OPEN, Phase
from traincope.store import RankRecords, RunRecords
from traincope.store.job.witness import Heard
from traincope.store.reading import WitnessedHost
from traincope.timeline import build_timeline
from traincope.topology import ClusterNode, Host, Scheduler

S = 1_000_000_000
DP = group("dp", 0, 1)
HEARD_NS = 100 * S
"""The witness heard host b for the last time."""


def steps(*, until_ns: int) -> list[Row]:
    """Steps of 10 s."""
    return [step(at, at * 10 * S, (at + 1) * 10 * S) for at in range(until_ns // (10 * S))]


def waiting(number: int, *, boot_id: str, until_ns: int = HEARD_NS, ending: str | None = None) -> RankRecords:
    """A rank that waits in the all_reduce of its open step."""
    at = until_ns // (10 * S)
    inside = [
        step(at, at * 10 * S, OPEN),
        phase(Phase.BACKWARD, until_ns, OPEN, at=at),
        collective(until_ns + 1, OPEN, name="all_reduce", sequence=at, at=at),
    ]
    rows = [clock(0, 0), *steps(until_ns=until_ns), *inside]
    return rank(number, *rows, groups=[DP], boot_id=boot_id, ending=ending)


A, B = waiting(0, boot_id="a"), waiting(1, boot_id="b")


def witnessed(*copies: RankRecords, silent_ns: int = 30 * S, **noted: bool) -> WitnessedHost:
    heard = Heard(host=B.info.host, witness=A.info.host, heard_wall_ns=HEARD_NS, silent_ns=silent_ns, **noted)
    return WitnessedHost(heard=heard, ranks=copies)


def job(*ranks: RankRecords, lost: WitnessedHost, world_size: int = 2) -> RunRecords:
    return replace(run(*ranks, world_size=world_size), witnessed=(lost,))


def test_a_silent_host_is_lost_and_its_ranks_are_named_with_what_they_were_in() -> None:
    analysis = analyze(build_timeline(job(A, lost=witnessed(B))))
    finding = analysis.verdict[0]
    assert (finding.kind, finding.ranks, finding.steps, finding.confidence) == (
        *(FindingKind.LOST_HOST, (1,), (10,), MEDIUM),
    )
    assert finding.evidence == (
        "host host-b was lost; last heard of 100.0 s after the run's first record; its ranks were in backward > "
        "all_reduce on dp, step 10 (rank 1); the agent of host host-a listened to it for 30 s after its last sign of "
        "life: it did not answer"
    )
    assert FindingKind.MISSING_RANK not in {finding.kind for finding in analysis.verdict}
    (fault,) = [fault for fault in analysis.faults if fault.kind == FaultKind.LOST_HOST]
    assert (fault.ranks, fault.step, fault.at_ns, fault.confidence) == ((1,), 10, HEARD_NS, MEDIUM)
    assert [rank.rank for rank in analysis.ledger.ranks] == [0]  # the copy enters no sum


def test_a_stop_for_ranks_of_a_lost_host_names_the_host() -> None:
    """Rank 1 left no records of its own, or older ones. Without the witness the culprit would be unknown."""
    seen = looked(A, WAITING, at_ns=HEARD_NS + 600 * S)
    older = waiting(1, boot_id="b", until_ns=80 * S)
    for ranks in ([seen], [seen, older]):
        recorded = job(*ranks, lost=witnessed(B))
        analysis = analyze(build_timeline(recorded))
        (hang,) = analysis.hangs
        assert (hang.kind, hang.culprits, hang.suspects, hang.victims) == (HangKind.LOST_HOST, (), (1,), (0,))
        assert (hang.host, hang.axis, hang.collective, hang.step) == ("host-b", "dp", "all_reduce", 10)
        assert hang.confidence == MEDIUM
        assert hang.evidence.startswith("host host-b was lost; last heard of 100.0 s after the run's first record; ")
        assert hang.evidence.endswith("; rank 0 waited for it in all_reduce on dp for 10 min 0 s")
        first, *others = analysis.verdict
        assert (first.kind, first.ranks, first.evidence) == (FindingKind.LOST_HOST, (1,), hang.evidence)
        assert not {FindingKind.LOST_HOST, FindingKind.HANG, FindingKind.MISSING_RANK} & {each.kind for each in others}
        assert [fault.ranks for fault in analysis.faults if fault.kind is FaultKind.LOST_HOST] == [(1,)]
        without = analyze(build_timeline(replace(recorded, witnessed=()))).hangs
        assert not any(hang.culprits or hang.host for hang in without)


def test_a_third_host_of_which_only_copies_are_here_waits_too() -> None:
    """Each host has its own run directory. Rank 2 of host c waits for rank 1 of the lost host b, as rank 0 does."""
    three = (group("dp", 0, 1, 2),)
    seen = replace(looked(A, WAITING, at_ns=HEARD_NS + 600 * S), groups=three)
    of_c = replace(waiting(2, boot_id="c"), groups=three)
    alive = Heard(host=of_c.info.host, witness=A.info.host, heard_wall_ns=HEARD_NS + 600 * S, silent_ns=S)
    both = (witnessed(replace(B, groups=three)), WitnessedHost(heard=alive, ranks=(of_c,)))
    (hang,) = analyze(build_timeline(replace(run(seen, world_size=3), witnessed=both))).hangs
    assert (hang.kind, hang.host, hang.suspects, hang.victims) == (HangKind.LOST_HOST, "host-b", (1,), (0, 2))


def test_a_certain_culprit_on_another_host_stays() -> None:
    """Rank 1 of host b waits as well: rank 0 did not join."""
    stood = rank(0, clock(0, 0), *steps(until_ns=HEARD_NS), step(10, HEARD_NS, OPEN), groups=[DP], boot_id="a")
    other = looked(replace(stood, info=replace(stood.info, ending=None)), FAULTY, at_ns=HEARD_NS + 600 * S)
    (hang,) = analyze(build_timeline(job(other, looked(B, WAITING, at_ns=HEARD_NS + 600 * S), lost=witnessed(B)))).hangs
    assert (hang.kind, hang.culprits, hang.host) == (HangKind.STUCK, (0,), "host-a")


def test_ranks_in_the_same_are_named_together() -> None:
    elsewhere = rank(3, clock(0, 0), step(10, HEARD_NS, OPEN), boot_id="b", ending=None)
    lost = witnessed(B, waiting(2, boot_id="b"), elsewhere)
    (host,) = lost_hosts(build_timeline(job(A, lost=lost, world_size=4)))
    assert host.ranks == (1, 2, 3)
    assert host.activity == (
        "backward > all_reduce on dp, step 10 (ranks 1, 2); nothing that a probe covers, step 10 (rank 3)"
    )


def test_a_connection_that_the_hosts_kernel_closed_shows_only_the_end_of_the_agent() -> None:
    (host,) = lost_hosts(build_timeline(job(A, lost=witnessed(B, closed=True))))
    assert host.confidence == UNKNOWN
    assert host.what == "host host-b may be lost"
    assert host.evidence.endswith("its agent ended without taking leave")


@pytest.mark.parametrize(
    ("later_s", "noted", "is_lost"),
    [
        (2, {"silent_ns": S // 2}, True),
        (-2, {"farewell": True}, False),
        (-60, {"farewell": True}, False),
        (60, {"silent_ns": S // 2}, False),
        (-60, {"silent_ns": S // 2}, True),
    ],
    ids=["ended with the host", "took its leave", "its clock is a minute behind", "heard it later", "heard it before"],
)
def test_witnesses_whose_clocks_differ(later_s: int, noted: dict[str, int], is_lost: bool) -> None:
    """The agent of host a listened for 30 s. The one of host c shares the run directory. Of a leave, clocks do not
    matter: also the end of a first agent of the host, long before a second one was lost, would count as leave.
    """
    by_a = witnessed(B)
    note = {"silent_ns": 20 * S, **noted}
    by_c = Heard(host=B.info.host, witness=Host(name="c", boot_id="c"), heard_wall_ns=HEARD_NS + later_s * S, **note)  # type: ignore[arg-type]
    both = (by_a, WitnessedHost(heard=by_c, ranks=(B,)))
    found = [lost_hosts(build_timeline(replace(job(A, lost=by_a), witnessed=order))) for order in (both, both[::-1])]
    assert [[(host.host, host.witness) for host in hosts] for hosts in found] == [
        [(B.info.host, A.info.host)] if is_lost else []
    ] * 2


def test_a_lost_host_explains_a_hang_unless_the_hangs_cause_is_certain() -> None:
    def finding(kind: FindingKind, confidence: str) -> Finding:
        return Finding(kind=kind, confidence=confidence, evidence="", advice="")

    lost, perhaps = (finding(FindingKind.LOST_HOST, confidence) for confidence in (MEDIUM, UNKNOWN))
    unknown, certain = (finding(FindingKind.HANG, confidence) for confidence in (UNKNOWN, HIGH))
    assert in_order_of_cause([lost, perhaps], [unknown]) == [lost, unknown, perhaps]
    assert in_order_of_cause([lost, perhaps], [certain, unknown]) == [certain, unknown, lost, perhaps]
    assert in_order_of_cause([lost], [unknown], hung_before=True) == [unknown, lost]


def test_the_longer_records_of_a_rank_count() -> None:
    """The run directory is shared, and the host's last records did not reach it."""
    short = waiting(1, boot_id="b", until_ns=80 * S)
    of_short = build_timeline(job(A, short, lost=witnessed(B)))
    assert [rank.open_step for rank in of_short.witnessed] == [10]
    assert lost_hosts(of_short)[0].step == 10
    of_long = build_timeline(job(A, B, lost=witnessed(short)))
    assert of_long.witnessed == ()
    assert lost_hosts(of_long)[0].step == 10


@pytest.mark.parametrize(
    "alive",
    [
        job(A, lost=witnessed(B, farewell=True)),
        job(A, lost=witnessed(B, silent_ns=4 * S)),
        job(A, lost=witnessed()),
        job(rank(0, clock(0, 0), *steps(until_ns=200 * S), boot_id="a", ending=None), lost=witnessed(B)),
        job(rank(0, clock(0, 0), *steps(until_ns=100 * S), boot_id="a"), lost=witnessed(B)),
        job(A, lost=witnessed(waiting(1, boot_id="b", ending="RuntimeError"))),
        job(A, waiting(1, boot_id="b", until_ns=110 * S), lost=witnessed(B)),
        job(A, replace(B, running=True), lost=witnessed(B)),
    ],
    ids=[
        "it took leave",
        "the witness did not listen for long",
        "none of its ranks is known",
        "the other host completed more steps",
        "the job ended cleanly",
        "its rank recorded an end",
        "its own records are later",
        "its rank runs",
    ],
)
def test_a_host_is_not_lost_if_the_job_shows_that_it_lived(alive: RunRecords) -> None:
    assert lost_hosts(build_timeline(alive)) == ()


def test_the_advice_takes_the_host_out_of_the_cluster() -> None:
    node = ClusterNode(scheduler=Scheduler.SLURM, name="node-b")
    copy = replace(B, info=replace(B.info, node=node))
    assert analyze(build_timeline(job(A, lost=witnessed(copy)))).verdict[0].advice == (
        "Check host-b and its network: power, kernel log, link. It is not known which of its ranks failed. "
        "If the host is the cause, take it out: scontrol update nodename=node-b state=drain reason=traincope"
    )
