"""Groups between jobs: which they are, and the split of their waits once the runs are read together."""

from dataclasses import replace

from tests.timeline.build import Row, collective, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.communication.workflow import workflow
from traincope.events import Flag, Phase
from traincope.report.text.workflow import NOT_JOINED, sentences
from traincope.timeline import Timeline, join_groups, with_joined
from traincope.topology import Group

STEPS = 6
WAIT, TRANSFER = "exposed_wait[replica]", "exposed_transfer[replica]"


def group_of(member: int, *, size: int = 2, marked: bool = True) -> Group:
    """A group that torch does not know, as a rank records it."""
    axis, rule = ("replica", "jobs") if marked else ("unregistered", "none")
    return Group(
        number=0,
        key="unregistered",
        axis=axis,
        rule=rule,
        ranks=(),
        between_jobs=marked,
        member=member,
        size=size,
    )


def rows(work_ns: int, *, num_bytes: int = 1_000, first: int = 0) -> list[Row]:
    """Steps of 100 that work, and then communicate with the other job until their end."""
    found = []
    for number in range(first, first + STEPS):
        at = 100 * number
        reduce = replace(collective(at + work_ns, at + 100, at=number, num_bytes=num_bytes), window=number)
        found += [
            step(number, at, at + 100),
            phase(Phase.FORWARD, at, at + work_ns, at=number),
            reduce,
            stall(reduce, at + work_ns, at + 100),
        ]
    return found


def job(
    *work_ns: int, member: int, num_bytes: int = 1_000, first: int = 0, size: int = 2, host: str = "boot"
) -> Timeline:
    return timeline(
        *(
            rank(
                number,
                *rows(ns, num_bytes=num_bytes, first=first),
                groups=[group_of(member, size=size)],
                boot_id=host,
            )
            for number, ns in enumerate(work_ns)
        )
    )


def together(*jobs: Timeline) -> list[Analysis]:
    return [analyze(each) for each in with_joined(jobs, join_groups(jobs))]


def test_alone_the_time_may_be_wait() -> None:
    ledger = analyze(job(60, member=0)).ledger
    assert ledger.total(TRANSFER) == 40 * (STEPS - 1)
    assert ledger.total(WAIT) == 0
    assert ledger.ambiguous_waits() == {("replica", AmbiguousWait.OTHER_JOBS): 40 * (STEPS - 1)}


def test_together_the_shortest_part_is_the_transfer() -> None:
    """The first job joins 30 before the second, whose part takes 10."""
    early, late = together(job(60, member=0), job(90, member=1))
    assert (early.ledger.total(WAIT), early.ledger.total(TRANSFER)) == (30 * (STEPS - 1), 10 * (STEPS - 1))
    assert (late.ledger.total(WAIT), late.ledger.total(TRANSFER)) == (0, 10 * (STEPS - 1))
    assert early.ledger.ambiguous_waits() == late.ledger.ambiguous_waits() == {}


def test_each_rank_is_paired_with_the_same_rank_of_the_other_job() -> None:
    """Rank 0 waits 30 for the other job's, rank 1 waits 5: all four communicate until 100."""
    jobs = job(60, 85, member=0), job(90, 90, member=1)
    early, _ = together(*jobs)
    waits = [rank.total(WAIT) for rank in early.ledger.ranks]
    assert waits == [30 * (STEPS - 1), 5 * (STEPS - 1)]
    assert [[(member.run, member.rank) for member in group.members] for group in join_groups(jobs)] == [
        [(0, 0), (1, 0)],
        [(0, 1), (1, 1)],
    ]


def test_a_job_that_begins_late_is_not_the_late_one() -> None:
    """The first job begins late: the second waits 950 for it in its first step. Then the first waits 30 in each."""
    begin = replace(collective(60, 100, num_bytes=1_000), window=0)
    waits = replace(begin, start_ns=-890)
    jobs = []
    for member, work_ns, first in ((0, 60, begin), (1, 90, waits)):
        own = [step(0, first.start_ns, 100), first, stall(first, first.start_ns, 100), *rows(work_ns, first=1)]
        jobs.append(timeline(rank(0, *own, groups=[group_of(member)])))
    joined = join_groups(jobs)
    early, late = workflow([analyze(each) for each in with_joined(jobs, joined)], joined).exchanges
    assert early.num_collectives == late.num_collectives == STEPS + 1
    assert (early.awaited_ns, late.awaited_ns) == (0, 30 * STEPS)
    assert (early.awaited_ratio, late.awaited_ratio) == (0, 1)


def test_a_job_that_begins_late_and_averages_rarely_is_not_late() -> None:
    """The jobs average at the end of each second step of 100, from the second step on, which is no warm-up. The second
    job begins 900 late, so the first waits that long once; then none waits for the other.
    """
    jobs = []
    for member, begun_ns in enumerate((0, 900)):
        own, now = [], begun_ns
        for number in range(2 * STEPS):
            work_ns, waited_ns = 90, 900 - begun_ns if number == 1 else 0
            end = now + work_ns + waited_ns + 10
            own += [step(number, now, end), phase(Phase.FORWARD, now, now + work_ns, at=number)]
            if number % 2:
                reduce = replace(collective(now + work_ns, end, at=number, num_bytes=1_000), window=number)
                own += [reduce, stall(reduce, now + work_ns, end)]
            now = end
        jobs.append(timeline(rank(0, *own, groups=[group_of(member)])))
    joined = join_groups(jobs)
    together = workflow([analyze(each) for each in with_joined(jobs, joined)], joined)
    assert [(each.awaited_ns, each.begun_ns, each.awaited_ratio) for each in together.exchanges] == [
        (0, 0, None),
        (0, 900, None),
    ]
    said = [*sentences(together)]
    assert f"{together.jobs[1].role} began last: 100.0 % of the waits on replica are in the first step" in said[2]
    assert not any("is late" in each or "vary" in each for each in said)


def test_runs_of_not_all_members_ask_for_the_others() -> None:
    """What `wait_for` marks would not show these waits."""
    assert [*sentences(workflow([analyze(job(60, member=0, size=3)), analyze(job(90, member=1, size=3))]))] == [
        NOT_JOINED
    ]


def test_a_job_that_looks_late_at_the_end_of_a_collective_is_not_early() -> None:
    """The first job joins at 20 and waits. The second joins at 50, works until 90, and sees only then that all ended at
    55: its part is the longer one. On another host, with a clock of its own, nothing shows which joined last.
    """
    for host, awaited_ns in (("boot", (0, 30 * (STEPS - 1))), ("another", (0, 0))):
        jobs = []
        for member, (start, end, flags) in enumerate(((20, 55, 0), (50, 90, Flag.DONE_BEFORE_WAIT))):
            own = []
            for number in range(STEPS):
                at = 100 * number
                reduce = replace(
                    collective(at + start, at + end, at=number, num_bytes=1_000, flags=flags), window=number
                )
                own += [step(number, at, at + 100), reduce]
            jobs.append(timeline(rank(0, *own, groups=[group_of(member)], boot_id=host if member else "boot")))
        joined = join_groups(jobs)
        together = workflow([analyze(each) for each in with_joined(jobs, joined)], joined)
        assert tuple(each.awaited_ns for each in together.exchanges) == awaited_ns


def test_all_members_of_a_larger_group_are_needed() -> None:
    jobs = [job(60, member=0, size=3), job(70, member=1, size=3), job(90, member=2, size=3)]
    assert [each.ledger.total(WAIT) for each in together(*jobs)] == [30 * 5, 20 * 5, 0]
    assert join_groups(jobs[:2]) == ()


def test_a_job_that_came_later_counts_other_steps() -> None:
    """It has no records of the first two steps. What both recorded is split, the rest stays ambiguous."""
    early, _ = together(job(60, member=0), job(90, member=1, first=2))
    assert early.ledger.total(WAIT) == 30 * (STEPS - 2)
    assert early.ledger.ambiguous_waits() == {("replica", AmbiguousWait.OTHER_JOBS): 40}


def test_groups_that_send_other_bytes_or_have_one_number_twice_are_not_one() -> None:
    assert join_groups([job(60, member=0), job(90, member=1, num_bytes=2_000)]) == ()
    assert join_groups([job(60, member=0), job(90, member=0)]) == ()


def test_wall_clocks_of_two_hosts_pair_collectives_too() -> None:
    early, _ = together(job(60, member=0), job(90, member=1, host="another"))
    assert early.ledger.total(WAIT) == 30 * (STEPS - 1)


def test_ranks_without_numbers_of_their_own_in_a_group_share_it_with_other_jobs() -> None:
    """Two ranks, each the first of two members: the second members are elsewhere. Numbers 0 and 1: both are here."""

    def axes(*members: int, world_size: int = 2) -> list[str]:
        ranks = [
            rank(number, *rows(60), groups=[group_of(member, marked=False)]) for number, member in enumerate(members)
        ]
        return [each.groups[0].axis for each in timeline(*ranks, world_size=world_size).ranks]

    assert axes(0, 0) == ["replica", "replica"]
    assert axes(0, 1) == ["unregistered", "unregistered"]
    assert axes(0, world_size=2) == ["unregistered"]


def test_no_advice_about_bytes_where_the_time_may_be_wait() -> None:
    (finding,) = (each for each in analyze(job(60, member=0)).verdict if each.kind == "exposed_communication")
    assert "they may be waiting for a late one" in finding.evidence
    assert "traincope report RUN RUN" in finding.advice
    assert finding.confidence == "unknown"
    early, _ = together(job(60, member=0), job(90, member=1))
    (wait,) = (each for each in early.verdict if each.kind == "exposed_wait")
    assert wait.evidence.startswith("ranks wait 30.0 % of step time for another job to join collectives on replica")
    assert "bf16" not in f"{[each.advice for each in early.verdict]}"
