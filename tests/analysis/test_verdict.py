"""Findings: the gravest first, each with numbers, and none where all is well."""

import pytest

from tests.analysis.lockstep import lockstep
from tests.analysis.orders import gpipe
from tests.analysis.pipelines import Pipeline
from tests.timeline.build import Row, collective, group, message, phase, rank, stall, step, timeline
from traincope.analysis import Finding, analyze
from traincope.analysis.losses import CAUSES
from traincope.analysis.stragglers import OWN_WORK
from traincope.analysis.terms import PHASE_TERMS
from traincope.events import OPEN, Flag, Phase
from traincope.plan.orders import Shape, orders
from traincope.store import RankRecords

MS = 1_000_000
DP = group("dp", 0, 1)


def verdict(*ranks: RankRecords, world_size: int | None = None) -> tuple[Finding, ...]:
    return analyze(timeline(*ranks, world_size=world_size)).verdict


def busy(*rows: Row) -> RankRecords:
    """One step of 100, computing but for `rows`."""
    return rank(0, step(0, 0, 100), phase(Phase.FORWARD, 0, 100), *rows)


def test_a_healthy_run_is_told_so() -> None:
    (finding,) = verdict(busy())
    assert (finding.kind, finding.evidence) == (
        "healthy",
        "100.0 % of a step is compute, and no loss takes 5.0 % of it",
    )


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (Phase.DATA_WAIT, "data_bound"),
        (Phase.CHECKPOINT_STALL, "checkpoint_stall"),
        (Phase.GC, "gc"),
        (Phase.COMPILE, "compile"),
        (Phase.SYNC, "sync"),
    ],
)
def test_what_holds_up_the_host_is_named_from_five_percent_on(of: Phase, kind: str) -> None:
    (finding,) = verdict(busy(phase(of, 50, 62)))
    assert (finding.kind, finding.estimated_gain_ratio) == (kind, 0.12)
    assert "12.0 % of a step" in finding.evidence
    assert [f.kind for f in verdict(busy(phase(of, 50, 54)))] == ["healthy"]


def test_evaluation_is_told_only_where_it_is_large_and_dilutes_no_loss() -> None:
    """20 of 120 are evaluation; garbage is 12 of the other 100."""
    busy_step = (step(0, 0, 120), phase(Phase.FORWARD, 0, 120))
    found = verdict(rank(0, *busy_step, phase(Phase.GC, 0, 12), phase(Phase.EVALUATION, 60, 80)))
    assert [(finding.kind, finding.estimated_gain_ratio) for finding in found] == [("evaluation", None), ("gc", 0.12)]
    assert found[0].evidence == "evaluation takes 16.7 % of the run, beside the steps"
    short = verdict(rank(0, *busy_step, phase(Phase.EVALUATION, 60, 71)))
    assert [finding.kind for finding in short] == ["healthy"]


def test_losses_come_largest_first() -> None:
    found = verdict(busy(phase(Phase.GC, 0, 10), phase(Phase.DATA_WAIT, 10, 40), phase(Phase.SYNC, 40, 60)))
    assert [finding.kind for finding in found] == ["data_bound", "sync", "gc"]


def test_time_in_nothing_is_admitted() -> None:
    (finding,) = verdict(rank(0, step(0, 0, 100), phase(Phase.FORWARD, 0, 70)))
    assert (finding.kind, finding.evidence) == ("unattributed", "30.0 % of a step is in nothing that is watched")


def test_a_slow_link_is_a_matter_of_transfer() -> None:
    (finding,) = verdict(*lockstep([[60, 60]] * 3, transfer_ns=40))
    assert (finding.kind, finding.ranks, finding.estimated_gain_ratio) == ("exposed_transfer", (), pytest.approx(0.4))
    assert "transfers on dp hold up compute for 40.0 % of a step, mostly all_reduce at 25.00 GB/s" in finding.evidence


def test_waiting_for_nobody_in_particular_is_a_matter_of_balance() -> None:
    (finding,) = verdict(*lockstep([[90, 90], [90, 50], [50, 90]], transfer_ns=1))
    assert (finding.kind, finding.ranks) == ("exposed_wait", ())
    assert "until the last one joins collectives on dp" in finding.evidence


def test_waiting_for_one_rank_is_told_once_and_names_it() -> None:
    (finding,) = verdict(*lockstep([[60, 90]] * 3, transfer_ns=1))
    assert (finding.kind, finding.ranks, finding.confidence) == ("straggler", (1,), "high")
    assert "rank 1 arrives last" in finding.evidence
    assert "1.50 times its peers'" in finding.evidence


@pytest.mark.parametrize("term", OWN_WORK)
def test_a_rank_that_is_late_for_a_reason_is_told_it_once_and_not_to_be_replaced(term: str) -> None:
    """Rank 1 takes 90 instead of 60, for one reason."""
    of = next((phase for phase, name in PHASE_TERMS.items() if name == term), Phase.NONE)
    (finding,) = verdict(*lockstep([[60, 90, 60]] * 3, transfer_ns=1, of=of))
    assert (finding.kind, finding.ranks, finding.confidence) == ("straggler", (1,), "high")
    assert finding.evidence.endswith(f"1.50 times its peers': {CAUSES[term][0]}")
    assert "replace it" not in finding.advice


@pytest.mark.parametrize(
    ("of", "kind", "evidence"),
    [
        (Phase.DATA_WAIT, "data_bound", "all other ranks wait 30.0 % of a step for the next batch"),
        (
            Phase.GC,
            "gc",
            "Python's garbage collector stops the training thread for 30.0 % of a step on the other ranks too",
        ),
        (Phase.NONE, "unattributed", "30.0 % of a step is in nothing that is watched on the other ranks too"),
    ],
)
def test_what_the_peers_of_a_late_rank_lose_to_the_same_is_told_of_them(of: Phase, kind: str, evidence: str) -> None:
    """Of 60 all lose 30, rank 1 another 30."""
    ranks = lockstep([[60, 90, 60]] * 3, transfer_ns=10, of=of, all_ns=30)
    found = {finding.kind: finding for finding in verdict(*ranks)}
    assert sorted(found) == sorted(["straggler", kind, "exposed_transfer"])
    assert found["straggler"].estimated_gain_ratio == pytest.approx(0.3)
    assert (found[kind].ranks, found[kind].evidence) == ((0, 2), evidence)


def test_what_cannot_be_told_on_one_axis_is_told_on_another() -> None:
    """Of the all-gather on fsdp rank 1 has no record; on dp both wait 12 for the wire."""
    lost, sent = collective(0, 40, name="all_gather", group=1), collective(88, 100, name="all_reduce", num_bytes=1_000)
    groups = [DP, group("fsdp", 0, 1)]
    both = [step(0, 0, 100), phase(Phase.FORWARD, 0, 88), sent, stall(sent, 88, 100)]
    found = verdict(rank(0, *both, lost, stall(lost, 0, 40), groups=groups), rank(1, *both, groups=groups))
    assert [(finding.kind, finding.confidence) for finding in found] == [
        ("exposed_communication", "unknown"),
        ("exposed_transfer", "medium"),
    ]
    assert found[0].evidence == (
        "ranks stand still 20.0 % of a step for fsdp; whether for the wire or for a late rank cannot be told, "
        "for records of their peers are missing"
    )


def unsplit(theirs: Row, *, boot_id: str = "boot") -> Finding:
    """Rank 0 stands still for 40 of 100 for a message; the sender's record is `theirs`."""
    receive = message("recv", 0, 40, peer=1, flags=Flag.DONE_BEFORE_WAIT)
    rows = (step(0, 0, 100), receive, stall(receive, 0, 40), phase(Phase.FORWARD, 40, 100))
    found = verdict(rank(0, *rows, groups=[DP]), rank(1, step(0, 0, 100), theirs, groups=[DP], boot_id=boot_id))
    return next(finding for finding in found if finding.kind == "exposed_communication")


def test_a_message_whose_sender_never_looked_back_cannot_be_split_and_says_so() -> None:
    finding = unsplit(message("send", 30, OPEN, peer=0))
    assert finding.evidence.endswith("for a peer never waited for its part, so nobody knows when that was done")
    assert finding.advice.startswith("wait for what is sent")


def test_between_hosts_whose_clocks_nothing_ties_it_is_the_clocks_that_forbid_it() -> None:
    finding = unsplit(message("send", 30, 80, peer=0, flags=Flag.DONE_BEFORE_WAIT), boot_id="another")
    assert finding.evidence.endswith("for the clocks of their hosts are not known well enough")


def test_a_stage_that_is_alone_waits_for_what_cannot_be_told() -> None:
    lengths = {(kind, s): ns for s in (0, 1) for kind, ns in (("F", 10), ("B", 20))}
    found = verdict(*Pipeline(orders=gpipe(2, 4), durations=lengths).ranks()[1:])
    finding = next(finding for finding in found if finding.kind == "exposed_communication")
    assert finding.evidence == (
        "ranks stand still 6.7 % of a step for pp; whether for the wire, for the schedule or for a late stage cannot "
        "be told, for some stage has no actions recorded in these steps"
    )


def test_what_is_hidden_beside_compute_holds_up_nobody() -> None:
    """An all-gather of 40 runs beside the forward; a reduce-scatter of 12 is stood still for."""
    hidden = collective(10, 50, name="all_gather", num_bytes=1_000)
    late = collective(88, 100, name="reduce_scatter", sequence=1, num_bytes=1_000)
    ranks = [
        rank(number, step(0, 0, 100), phase(Phase.FORWARD, 0, 88), hidden, late, stall(late, 88, 100), groups=[DP])
        for number in (0, 1)
    ]
    (finding,) = verdict(*ranks)
    assert finding.kind == "exposed_transfer"
    assert finding.evidence.startswith(
        "transfers on dp hold up compute for 12.0 % of a step, mostly reduce_scatter at "
    )


def test_a_bubble_is_held_against_theory_and_more_microbatches() -> None:
    """GPipe, 2 stages, 4 microbatches: 1/5 of the time; with 8 it is 1/9, which saves half the idle time."""
    lengths = {(kind, s): ns for s in (0, 1) for kind, ns in (("F", 10), ("B", 20))}
    (finding,) = verdict(*Pipeline(orders=gpipe(2, 4), durations=lengths).ranks())
    assert (finding.kind, finding.confidence) == ("pipeline_bubble", "high")
    assert finding.evidence == (
        "the pipeline idles 20.0 % of a step: 20.0 % schedule, 0.0 % uneven stages, 0.0 % jitter; "
        "theory for gpipe, 2 stages, 4 microbatches is 20.0 %"
    )
    assert finding.advice == "with 8 microbatches the schedule idles 11.1 % by theory"
    assert finding.estimated_gain_ratio == pytest.approx(0.1)


def test_uneven_stages_are_to_be_evened_out() -> None:
    lengths = {("F", 0): 10, ("B", 0): 20, ("F", 1): 30, ("B", 1): 60}
    finding = verdict(*Pipeline(orders=gpipe(2, 8), durations=lengths).ranks())[0]
    assert finding.kind == "pipeline_bubble"
    assert "move layers away from it" in finding.advice
    assert "stage 1" in finding.advice


def test_of_several_stages_of_a_rank_the_one_to_lighten_is_named() -> None:
    """Rank 0 has stages 0 and 2, and it is stage 2 that takes three times as long."""
    lengths = {(kind, s): ns * (3 if s == 2 else 1) for s in range(4) for kind, ns in (("F", 10), ("B", 20))}
    interleaved = orders("interleaved", Shape(ranks=2, microbatches=8, chunks=2))
    finding = verdict(*Pipeline(orders=interleaved, durations=lengths).ranks())[0]
    assert finding.advice == "even out the stages: stage 2 computes longest, move layers away from it"


def killed(number: int, *, last_ns: int, ending: str | None = None) -> RankRecords:
    """It hung in an all-reduce of step 1, or just ended there."""
    reduce = collective(last_ns, OPEN, name="all_reduce", at=1)
    rows = (step(0, 0, 100 * MS), phase(Phase.FORWARD, 0, 100 * MS), step(1, 100 * MS, OPEN), reduce)
    return rank(number, *rows, stall(reduce, last_ns, OPEN), groups=[DP], ending=ending)


def test_the_rank_that_went_first_comes_before_all_losses() -> None:
    found = verdict(killed(0, last_ns=150 * MS, ending="RuntimeError"), killed(1, last_ns=120 * MS))
    assert (found[0].kind, found[0].ranks, found[0].steps, found[0].confidence) == ("killed_rank", (1,), (1,), "high")
    assert "rank 1 went first: its records just stop, 30 ms before any other rank's end" in found[0].evidence
    assert "all_reduce on dp" in found[0].evidence


def test_a_rank_that_raised_first_is_told_by_what() -> None:
    found = verdict(
        killed(0, last_ns=120 * MS, ending="ValueError"), killed(1, last_ns=150 * MS, ending="RuntimeError")
    )
    assert (found[0].kind, found[0].ranks) == ("failed_rank", (0,))
    assert "it left the run by ValueError" in found[0].evidence


def test_ranks_that_stop_together_leave_it_open_who_was_first() -> None:
    """They may be running still."""
    found = verdict(killed(0, last_ns=150 * MS), killed(1, last_ns=151 * MS))
    assert (found[0].kind, found[0].ranks, found[0].confidence) == ("no_end_recorded", (0, 1), "unknown")


def test_missing_ranks_are_named() -> None:
    kinds = [(finding.kind, finding.ranks) for finding in verdict(busy(), world_size=3)]
    assert kinds == [("missing_rank", (1, 2))]


def test_without_a_complete_step_nothing_is_said_about_time() -> None:
    (finding,) = verdict(rank(0, step(0, 0, OPEN), phase(Phase.FORWARD, 0, 50)))
    assert (finding.kind, finding.confidence) == ("no_steps", "unknown")
