"""Findings in order, each with its evidence; healthy only without any."""

from dataclasses import replace

import pytest

from tests.analysis.lockstep import ENOUGH, lockstep
from tests.analysis.pipeline.orders import gpipe
from tests.analysis.pipeline.pipelines import Pipeline
from tests.timeline.build import Row, collective, group, message, phase, rank, stall, step, timeline
from traincope.analysis import Finding, FindingKind, analyze
from traincope.analysis.attribution.terms import PHASE_TERMS, UNATTRIBUTED
from traincope.analysis.stragglers.own_work import OWN_WORK
from traincope.analysis.verdict.findings import ordered
from traincope.analysis.verdict.losses.late_causes import UNCOVERED, WAITS
from traincope.events import BATCH_READ, OPEN, Flag, Kind, Phase
from traincope.plan.pipeline.orders import Shape, orders
from traincope.store import RankRecords

MS = 1_000_000
DP = group("dp", 0, 1)


def verdict(*ranks: RankRecords, world_size: int | None = None) -> tuple[Finding, ...]:
    return analyze(timeline(*ranks, world_size=world_size)).verdict


def busy(*rows: Row) -> RankRecords:
    """One step of 100 that computes except during `rows`."""
    return rank(0, step(0, 0, 100), phase(Phase.FORWARD, 0, 100), *rows)


def test_a_run_without_losses_is_healthy() -> None:
    (finding,) = verdict(busy())
    assert (finding.kind, finding.evidence) == (
        "healthy",
        "100.0 % of step time is compute, and no loss reaches 5.0 %",
    )


@pytest.mark.parametrize(
    ("lost_phase", "kind"),
    [
        (Phase.DATA_WAIT, "data_bound"),
        (Phase.CHECKPOINT_STALL, "checkpoint_stall"),
        (Phase.GC, "gc"),
        (Phase.COMPILE, "compile"),
        (Phase.SYNC, "sync"),
    ],
)
def test_host_losses_are_findings_from_five_percent_on(lost_phase: Phase, kind: str) -> None:
    (finding,) = verdict(busy(phase(lost_phase, 50, 62)))
    assert (finding.kind, finding.estimated_gain_ratio) == (kind, 0.12)
    assert "12.0 % of step time" in finding.evidence
    assert [f.kind for f in verdict(busy(phase(lost_phase, 50, 54)))] == ["healthy"]


def test_only_large_evaluations_are_findings_and_do_not_dilute_losses() -> None:
    """20 of 120 are evaluation; garbage is 12 of the other 100."""
    busy_step = (step(0, 0, 120), phase(Phase.FORWARD, 0, 120))
    findings = verdict(rank(0, *busy_step, phase(Phase.GC, 0, 12), phase(Phase.EVALUATION, 60, 80)))
    assert [(finding.kind, finding.estimated_gain_ratio) for finding in findings] == [
        ("gc", 0.12),
        ("evaluation", pytest.approx(1 / 6)),
    ]
    assert findings[1].evidence == "evaluation takes 16.7 % of the run after its start-up, outside the steps"
    assert findings[1].advice.endswith(": this saves at most 16.7 % of the run.")
    short = verdict(rank(0, *busy_step, phase(Phase.EVALUATION, 60, 71)))
    assert [finding.kind for finding in short] == ["healthy"]


def test_losses_come_largest_first() -> None:
    findings = verdict(busy(phase(Phase.GC, 0, 10), phase(Phase.DATA_WAIT, 10, 40), phase(Phase.SYNC, 40, 60)))
    assert [finding.kind for finding in findings] == ["data_bound", "sync", "gc"]


def test_time_without_a_probe_is_unattributed() -> None:
    (finding,) = verdict(rank(0, step(0, 0, 100), phase(Phase.FORWARD, 0, 70)))
    assert (finding.kind, finding.evidence) == ("unattributed", "30.0 % of step time is covered by no probe")


def test_a_slow_link_is_exposed_transfer() -> None:
    (finding,) = verdict(*lockstep([[60, 60]] * 3, transfer_ns=40))
    assert (finding.kind, finding.ranks, finding.estimated_gain_ratio) == ("exposed_transfer", (), pytest.approx(0.4))
    assert "transfers on dp delay compute by 40.0 % of step time, mostly all_reduce at 25.00 GB/s" in finding.evidence


def test_waiting_without_a_single_culprit_is_exposed_wait() -> None:
    (finding,) = verdict(*lockstep([[90, 90], *[[90, 50], [50, 90]] * 30], transfer_ns=1))
    assert (finding.kind, finding.ranks) == ("exposed_wait", ())
    assert finding.evidence.endswith("for the last rank to join collectives on dp; no rank is late step after step")


def test_a_rank_that_most_waits_are_for_but_not_steadily_is_mentioned_and_not_named() -> None:
    """It is late for five steps, and then not for five."""
    (finding,) = verdict(*lockstep([[90, 90], *([[50, 90]] * 5 + [[90, 90]] * 5) * 6], transfer_ns=1))
    assert (finding.kind, finding.ranks) == ("exposed_wait", ())
    assert finding.evidence.endswith(
        "no rank is late step after step: 100.0 % of the waits are for rank 1, but not steadily"
    )


def test_few_steps_do_not_tell_whether_one_rank_is_the_cause() -> None:
    (finding,) = verdict(*lockstep([[60, 90]] * 3, transfer_ns=1))
    assert (finding.kind, finding.ranks) == ("exposed_wait", ())
    assert finding.evidence.endswith("too few steps to name a rank: 2 of 59")


def test_waiting_for_one_rank_is_one_straggler_finding() -> None:
    (finding,) = verdict(*lockstep([[60 * MS, 90 * MS]] * ENOUGH, transfer_ns=MS))
    assert (finding.kind, finding.ranks, finding.confidence) == ("straggler", (1,), "high")
    assert finding.evidence == (
        "rank 1 is late step after step, by 30.0 ms on average: the ranks that wait for it lose 33.0 % of step time; "
        "forward takes 90.0 ms on rank 1, 60.0 ms on the others"
    )
    assert "replace" not in finding.advice
    assert finding.estimated_gain_ratio == pytest.approx(30 / 91)


@pytest.mark.parametrize("term", OWN_WORK)
def test_the_advice_for_a_straggler_follows_its_cause(term: str) -> None:
    """Rank 1 takes 90 instead of 60, for one reason."""
    lost_phase = next((phase for phase, name in PHASE_TERMS.items() if name == term), Phase.NONE)
    (finding,) = verdict(*lockstep([[60 * MS, 90 * MS, 60 * MS]] * ENOUGH, transfer_ns=MS, of=lost_phase))
    assert (finding.kind, finding.ranks, finding.confidence) == ("straggler", (1,), "high")
    does, advice = {**WAITS, UNATTRIBUTED: UNCOVERED}[term]
    assert finding.evidence.endswith(f"{term} takes 30.0 ms on rank 1, 0.0 ms on the others; {does}")
    assert advice.removesuffix(".") in finding.advice


def test_the_longest_wait_for_data_is_apart_from_the_mean() -> None:
    """In turn, rank 0 waits 40 ms more and rank 1 20 ms more, in steps of 105 and 85 ms.

    Five steps after the warm-up are too few to name a straggler: 80 and 60 ms of 465.
    """
    turns = [[100 * MS, 60 * MS], [60 * MS, 80 * MS]] * 3
    found = verdict(*lockstep(turns, transfer_ns=5 * MS, of=Phase.DATA_WAIT))
    (data,) = (finding for finding in found if finding.kind == "data_bound")
    assert data.evidence == "training waits up to 17.2 % of step time on rank 0, 15.1 % on average, for the next batch"


def test_two_stragglers_share_one_gain() -> None:
    first, second = verdict(*lockstep([[60, 90, 60, 80, 60]] * ENOUGH, transfer_ns=10))[:2]
    assert [(each.ranks, each.estimated_gain_ratio) for each in (first, second)] == [
        ((1,), pytest.approx(0.3)),
        ((3,), pytest.approx(0.2)),
    ]
    assert first.advice.endswith("Together with the other stragglers, this saves an estimated 30.0 % of step time.")


@pytest.mark.parametrize(
    ("lost_phase", "kind", "evidence"),
    [
        (Phase.DATA_WAIT, "data_bound", "all other ranks wait 30.0 % of step time for the next batch"),
        (
            Phase.GC,
            "gc",
            "garbage collection stops the training thread for 30.0 % of step time on the other ranks too",
        ),
        (Phase.NONE, "unattributed", "30.0 % of step time is covered by no probe on the other ranks too"),
    ],
)
def test_peers_of_a_straggler_have_their_own_finding_for_the_same_term(
    lost_phase: Phase, kind: str, evidence: str
) -> None:
    """All ranks lose 30 of 60, rank 1 another 30."""
    ranks = lockstep([[60, 90, 60]] * ENOUGH, transfer_ns=10, of=lost_phase, all_ns=30)
    findings = {finding.kind: finding for finding in verdict(*ranks)}
    assert sorted(findings) == sorted(["straggler", kind, "exposed_transfer"])
    assert findings["straggler"].estimated_gain_ratio == pytest.approx(0.3)
    assert (findings[kind].ranks, findings[kind].evidence) == ((0, 2), evidence)


def saving(*names: str, thread: str = "main") -> list[RankRecords]:
    """A rank whose step of 100 has a stop of 30 for a checkpoint, and one of 10 for each further name."""
    rows = [step(0, 0, 100), phase(Phase.FORWARD, 0, 40)]
    for at, name in enumerate(names):
        begin = 40 + 30 * (at > 0) + 10 * max(at - 1, 0)
        stop = phase(Phase.CHECKPOINT_STALL, begin, begin + (10 if at else 30), at=0)
        rows.append(replace(stop, name=f"{name} checkpoint", thread="main" if at == 0 else thread))
    return [rank(0, *rows)]


@pytest.mark.parametrize(
    ("ranks", "advice"),
    [
        (saving("save"), "Save checkpoints asynchronously"),
        (saving("save", "async_save"), "Save checkpoints asynchronously"),
        (saving("async_save", "save"), "Saves run in the background already"),
        (saving("save", "save", thread="thread-2"), "Saves run in the background already"),
        (saving("load", "save"), "Load checkpoints before the first step"),
    ],
)
def test_what_stops_training_for_a_checkpoint_decides_the_advice(ranks: list[RankRecords], advice: str) -> None:
    finding = next(finding for finding in verdict(*ranks) if finding.kind == "checkpoint_stall")
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("name", "evidence", "advice"),
    [
        ("DataLoader", "for the next batch", "Give the DataLoader more workers"),
        ("DataLoader without workers", "made in the training process (num_workers=0)", "Give the DataLoader workers"),
    ],
)
def test_a_loader_without_workers_is_advised_to_have_some(name: str, evidence: str, advice: str) -> None:
    wait = replace(phase(Phase.DATA_WAIT, 0, 30, at=0), name=name)
    finding = next(each for each in verdict(rank(0, step(0, 0, 100), wait)) if each.kind == "data_bound")
    assert finding.evidence.endswith(evidence)
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("name", "what"),
    [("DataLoader", "made anew in each step, and its workers with it"), ("DataLoader without workers", "in each step")],
)
def test_iterators_that_are_made_anew_in_each_step_are_the_reason_of_their_wait(name: str, what: str) -> None:
    """10 iterators give one batch each, others every time, as a random sampler does. One that goes on is no reason."""
    rows = []
    for at in range(10):
        wait = replace(phase(Phase.DATA_WAIT, 100 * at, 100 * at + 30, at=at), name=name)
        batch = Row(
            kind=Kind.BATCH, start_ns=100 * at + 30, end_ns=100 * at + 30, name=BATCH_READ, step=at, value=at + 1
        )
        rows += [step(at, 100 * at, 100 * at + 100), wait, replace(batch, group=at + 1)]
    (finding,) = (each for each in verdict(rank(0, *rows)) if each.kind == "data_bound")
    assert finding.evidence.endswith(what)
    assert finding.advice.startswith("Make one iterator per epoch")
    one = [replace(row, group=1) if row.kind is Kind.BATCH else row for row in rows]
    (finding,) = (each for each in verdict(rank(0, *one)) if each.kind == "data_bound")
    assert finding.advice.startswith("Give the DataLoader")


def test_a_finding_names_the_ranks_that_carry_it() -> None:
    """Rank 2 of 4 has 60 of the 68 ns without a probe; with 10 on each rank all of them have it."""
    single = [rank(at, step(0, 0, 100), phase(Phase.FORWARD, 0, 40 if at == 2 else 97)) for at in range(4)]
    (finding,) = (finding for finding in verdict(*single) if finding.kind == "unattributed")
    assert (finding.ranks, finding.evidence) == (
        (2,),
        "17.2 % of step time is covered by no probe, most of it on rank 2",
    )
    (finding,) = verdict(*(rank(at, step(0, 0, 100), phase(Phase.FORWARD, 0, 90)) for at in range(4)))
    assert (finding.ranks, finding.evidence) == ((), "10.0 % of step time is covered by no probe")


def test_compilation_that_is_recorded_is_not_advised() -> None:
    compiling = rank(0, step(0, 0, 100), phase(Phase.COMPILE, 0, 10), phase(Phase.LAUNCH_GAP, 10, 40))
    advice = next(finding.advice for finding in verdict(compiling) if finding.kind == "launch_gap")
    assert advice.startswith("Launch fewer and larger kernels (CUDA graphs, larger batches where memory allows)")


def test_an_ambiguous_axis_does_not_hide_another() -> None:
    """Rank 1 has no record of the all-gather on fsdp; on dp both ranks wait 12 for the transfer."""
    lost, sent = collective(0, 40, name="all_gather", group=1), collective(88, 100, name="all_reduce", num_bytes=1_000)
    groups = [DP, group("fsdp", 0, 1)]
    both = [step(0, 0, 100), phase(Phase.FORWARD, 0, 88), sent, stall(sent, 88, 100)]
    findings = verdict(rank(0, *both, lost, stall(lost, 0, 40), groups=groups), rank(1, *both, groups=groups))
    assert [(finding.kind, finding.confidence) for finding in findings] == [
        ("exposed_transfer", "medium"),
        ("exposed_communication", "unknown"),
    ]
    assert findings[1].evidence == (
        "ranks wait 20.0 % of step time on fsdp; the transfer or a late rank may be the cause: "
        "records of their peers are missing"
    )


@pytest.mark.parametrize("members", [(), (0, 1)])
def test_a_group_whose_other_members_are_not_in_the_run_does_not_show_its_transfer(members: tuple[int, ...]) -> None:
    """Torch does not know the members of torchft's groups. The time may be that of a replica."""
    reduce = collective(60, 100, num_bytes=1_000)
    rows = (step(0, 0, 100), phase(Phase.FORWARD, 0, 60), reduce, stall(reduce, 60, 100))
    (finding,) = verdict(rank(0, *rows, groups=[group("replica", *members)]))
    assert (finding.kind, finding.confidence, finding.estimated_gain_ratio) == (
        "exposed_communication",
        "unknown",
        None,
    )
    assert finding.evidence.startswith("ranks wait 40.0 % of step time on replica; the transfer or a late rank may be")
    assert "If the peers are another replica or job, record it too" in finding.advice
    assert "bf16" not in finding.advice


def test_a_group_of_one_has_neither_peers_nor_a_transfer() -> None:
    reduce = collective(60, 100, num_bytes=1_000)
    rows = (step(0, 0, 100), phase(Phase.FORWARD, 0, 60), reduce, stall(reduce, 60, 100))
    (finding,) = verdict(rank(0, *rows, groups=[group("dp", 0)]))
    assert finding.evidence == (
        "collectives of groups with one member on dp delay compute by 40.0 % of step time, mostly all_gather"
    )
    assert finding.advice.startswith("Leave these collectives out: their groups have one member, so nothing is sent")


def test_time_that_may_be_wait_is_no_part_of_a_transfer() -> None:
    """Of 30 on dp, rank 1 has no record of 12."""
    lost = collective(0, 12, name="all_gather", num_bytes=1_000)
    sent = collective(82, 100, name="all_reduce", sequence=1, num_bytes=1_000)
    both = [step(0, 0, 100), phase(Phase.FORWARD, 12, 82), sent, stall(sent, 82, 100)]
    findings = verdict(rank(0, *both, lost, stall(lost, 0, 12), groups=[DP]), rank(1, *both, groups=[DP]))
    transfer = next(finding for finding in findings if finding.kind == "exposed_transfer")
    assert transfer.evidence.startswith("transfers on dp delay compute by 18.0 % of step time, mostly all_reduce")
    assert transfer.evidence.endswith("; another 6.0 % is transfer or wait")
    assert transfer.estimated_gain_ratio == pytest.approx(0.18)


def ambiguous(theirs: Row, *, boot_id: str = "boot") -> Finding:
    """Rank 0 stalls 40 of 100 for a message; the sender's record is `theirs`."""
    receive = message("recv", 0, 40, peer=1, flags=Flag.DONE_BEFORE_WAIT)
    rows = (step(0, 0, 100), receive, stall(receive, 0, 40), phase(Phase.FORWARD, 40, 100))
    findings = verdict(rank(0, *rows, groups=[DP]), rank(1, step(0, 0, 100), theirs, groups=[DP], boot_id=boot_id))
    return next(finding for finding in findings if finding.kind == "exposed_communication")


def test_a_message_whose_sender_never_waited_is_ambiguous() -> None:
    finding = ambiguous(message("send", 30, OPEN, peer=0))
    assert finding.evidence.endswith(": a peer never waited for its part, so the end of that part is unknown")
    assert finding.advice.startswith("Call work.wait()")


def test_unrelated_host_clocks_make_a_wait_ambiguous() -> None:
    finding = ambiguous(message("send", 30, 80, peer=0, flags=Flag.DONE_BEFORE_WAIT), boot_id="another")
    assert finding.evidence.endswith(": the clocks of their hosts are not known well enough")


def test_the_wait_of_a_single_recorded_stage_is_ambiguous() -> None:
    lengths = {(kind, s): ns for s in (0, 1) for kind, ns in (("F", 10), ("B", 20))}
    findings = verdict(*Pipeline(orders=gpipe(2, 4), durations=lengths).ranks()[1:])
    finding = next(finding for finding in findings if finding.kind == "exposed_communication")
    assert finding.evidence == (
        "ranks wait 6.7 % of step time on pp; the transfer, the schedule or a late stage may be the cause: "
        "some stage has no actions recorded in these steps"
    )


def test_hidden_communication_is_not_a_loss() -> None:
    """An all-gather of 40 is hidden behind the forward; a reduce-scatter of 12 stalls the rank."""
    hidden = collective(10, 50, name="all_gather", num_bytes=1_000)
    late = collective(88, 100, name="reduce_scatter", sequence=1, num_bytes=1_000)
    ranks = [
        rank(number, step(0, 0, 100), phase(Phase.FORWARD, 0, 88), hidden, late, stall(late, 88, 100), groups=[DP])
        for number in (0, 1)
    ]
    (finding,) = verdict(*ranks)
    assert finding.kind == "exposed_transfer"
    assert finding.evidence.startswith(
        "transfers on dp delay compute by 12.0 % of step time, mostly reduce_scatter at "
    )


def test_a_bubble_is_compared_with_theory_and_more_microbatches() -> None:
    """GPipe, 2 stages, 4 microbatches: 1/5 of the time; with 8 it is 1/9, which saves half the idle time."""
    lengths = {(kind, s): ns for s in (0, 1) for kind, ns in (("F", 10), ("B", 20))}
    (finding,) = verdict(*Pipeline(orders=gpipe(2, 4), durations=lengths).ranks())
    assert (finding.kind, finding.confidence) == ("pipeline_bubble", "high")
    assert finding.evidence == (
        "the pipeline idles 20.0 % of step time: 20.0 % schedule, 0.0 % imbalance, 0.0 % jitter; "
        "theory for gpipe, 2 stages, 4 microbatches is 20.0 %"
    )
    assert finding.advice == "Use 8 microbatches: the schedule's bubble falls from 20.0 % to 11.1 %."
    assert finding.estimated_gain_ratio == pytest.approx(0.1)


def test_uneven_stages_are_advised_to_move_layers() -> None:
    lengths = {("F", 0): 10, ("B", 0): 20, ("F", 1): 30, ("B", 1): 60}
    finding = verdict(*Pipeline(orders=gpipe(2, 8), durations=lengths).ranks())[0]
    assert finding.kind == "pipeline_bubble"
    assert finding.ranks == (1,)
    assert finding.evidence.endswith("; stage 1 (rank 1) works 90 ns per microbatch, the other 30 ns")
    assert "Move layers away from stage 1, which computes longest" in finding.advice


def test_a_slow_stage_comes_before_a_schedule_that_gains_less() -> None:
    """The schedule's share is the larger one, but 16 microbatches would save less than stages with equal work."""
    lengths = {("F", 0): 10, ("B", 0): 20, ("F", 1): 17, ("B", 1): 34}
    finding = verdict(*Pipeline(orders=gpipe(2, 4), durations=lengths).ranks())[0]
    assert finding.ranks == (1,)
    assert "17.5 % schedule, 13.2 % imbalance" in finding.evidence
    assert "Move layers away from stage 1" in finding.advice
    even = {("F", s): 10 + s for s in (0, 1)} | {("B", s): 20 + 2 * s for s in (0, 1)}
    assert "microbatches" in verdict(*Pipeline(orders=gpipe(2, 4), durations=even).ranks())[0].advice


def test_a_slow_stage_that_recomputes_says_so() -> None:
    class Recomputes(Pipeline):
        def rows(self, rank: int) -> list[Row]:
            begins = (
                [start for at, start in self.starts.items() if (at.kind, at.stage) == ("B", 1)] if rank == 1 else []
            )
            return [*super().rows(rank), *(phase(Phase.RECOMPUTE, begin, begin + 17) for begin in begins)]

    lengths = {("F", 0): 10, ("B", 0): 20, ("F", 1): 17, ("B", 1): 51}
    finding = verdict(*Recomputes(orders=gpipe(2, 4), durations=lengths).ranks())[0]
    assert finding.evidence.endswith(
        "; stage 1 (rank 1) works 68 ns per microbatch, the other 30 ns; it recomputes activations for 22.5 % of its "
        "steps, the others for 0.0 %"
    )
    assert finding.advice.startswith("Recompute less on stage 1, which computes longest, or move layers away from it")


def test_the_slowest_of_a_ranks_stages_is_named() -> None:
    """Rank 0 has stages 0 and 2, and it is stage 2 that takes three times as long."""
    lengths = {(kind, s): ns * (3 if s == 2 else 1) for s in range(4) for kind, ns in (("F", 10), ("B", 20))}
    interleaved = orders("interleaved", Shape(ranks=2, microbatches=8, chunks=2))
    finding = verdict(*Pipeline(orders=interleaved, durations=lengths).ranks())[0]
    assert finding.ranks == (0,)
    assert finding.evidence.endswith("; stages 0, 2 (rank 0) work 120 ns per microbatch, the other 60 ns")
    assert finding.advice == (
        "Move layers away from stage 2, which computes longest: this saves an estimated 20.3 % of step time."
    )


def killed(number: int, *, last_ns: int, ending: str | None = None) -> RankRecords:
    """A rank that hung or ended in an all-reduce of step 1."""
    reduce = collective(last_ns, OPEN, name="all_reduce", at=1)
    rows = (step(0, 0, 100 * MS), phase(Phase.FORWARD, 0, 100 * MS), step(1, 100 * MS, OPEN), reduce)
    return rank(number, *rows, stall(reduce, last_ns, OPEN), groups=[DP], ending=ending)


def test_the_rank_that_ended_first_comes_before_all_losses() -> None:
    findings = verdict(killed(0, last_ns=150 * MS), killed(1, last_ns=120 * MS, ending="ValueError"))
    assert (findings[0].kind, findings[0].ranks, findings[0].steps, findings[0].confidence) == (
        "failed_rank",
        (1,),
        (1,),
        "high",
    )
    assert (
        "rank 1 ended first: it raised ValueError, 30 ms before the last record of any other rank"
        in findings[0].evidence
    )
    assert "all_reduce on dp" in findings[0].evidence


def test_a_rank_with_unknown_end_is_named_with_the_first_known_end_but_not_blamed() -> None:
    """Rank 1 may have been killed before and caused the error, or it is alive and waits."""
    findings = verdict(killed(0, last_ns=150 * MS, ending="RuntimeError"), killed(1, last_ns=120 * MS))
    assert (findings[0].kind, findings[0].ranks, findings[0].confidence) == ("failed_rank", (0,), "unknown")
    assert findings[0].evidence.startswith("of the known ends, rank 0 ended first: it raised RuntimeError; ")
    assert (
        "the record does not show whether rank 1 ended; rank 1 was last heard of 0.120 s after" in findings[0].evidence
    )
    assert "still run" in findings[0].advice


def test_the_exception_of_the_first_rank_is_named() -> None:
    findings = verdict(
        killed(0, last_ns=120 * MS, ending="ValueError"), killed(1, last_ns=150 * MS, ending="RuntimeError")
    )
    assert (findings[0].kind, findings[0].ranks) == ("failed_rank", (0,))
    assert "it raised ValueError" in findings[0].evidence


def test_ranks_that_stop_together_have_no_first() -> None:
    """Both ranks may still run."""
    findings = verdict(killed(0, last_ns=150 * MS), killed(1, last_ns=151 * MS))
    assert (findings[0].kind, findings[0].ranks, findings[0].confidence) == ("no_end_recorded", (0, 1), "unknown")


def test_missing_ranks_are_named() -> None:
    kinds = [(finding.kind, finding.ranks) for finding in verdict(busy(), world_size=3)]
    assert kinds == [("missing_rank", (1, 2))]


def test_without_a_complete_step_the_verdict_is_no_steps() -> None:
    (finding,) = verdict(rank(0, step(0, 0, OPEN), phase(Phase.FORWARD, 0, 50)))
    assert (finding.kind, finding.confidence) == ("no_steps", "unknown")


def test_a_cause_that_messages_show_comes_before_a_gain_of_unknown_confidence() -> None:
    kinds = (FindingKind.EXPOSED_TRANSFER, FindingKind.HOT_EXPERT, FindingKind.UNATTRIBUTED, FindingKind.GC)
    gains = {FindingKind.EXPOSED_TRANSFER: ("unknown", 0.5), FindingKind.GC: ("medium", 0.06)}
    found = []
    for kind in kinds:
        confidence, gain = gains.get(kind, ("medium", None))
        ranks = (1,) if kind is FindingKind.HOT_EXPERT else ()
        made = Finding(kind=kind, ranks=ranks, confidence=confidence, evidence="", advice="", estimated_gain_ratio=gain)
        found.append(made)
    assert [str(each.kind) for each in ordered(found)] == ["gc", "hot_expert", "exposed_transfer", "unattributed"]


@pytest.mark.parametrize(
    ("saved", "kinds"),
    [
        (0.14, ["checkpoint_stall", "unattributed", "data_bound"]),
        (0.04, ["unattributed", "data_bound", "checkpoint_stall"]),
    ],
)
def test_own_code_comes_after_gains_that_are_no_bounds(saved: float, kinds: list[str]) -> None:
    """It takes 80 % of the steps, which may be what they are for; a save is not, if it takes 5 % at least."""
    rows = [
        (FindingKind.UNATTRIBUTED, 0.8, True),
        (FindingKind.DATA_BOUND, 0.1, True),
        (FindingKind.CHECKPOINT_STALL, saved, False),
    ]
    found = [
        Finding(
            kind=kind, confidence="medium", evidence="", advice="", estimated_gain_ratio=gain, gain_at_most=is_bound
        )
        for kind, gain, is_bound in rows
    ]
    assert [str(each.kind) for each in ordered(found)] == kinds


def test_findings_are_ordered_by_fault_then_gain_times_confidence() -> None:
    """0.3 x 0.5 is less than 0.2 x 1; a gain of unknown confidence weighs nothing, but comes before no gain."""
    rows = [
        (FindingKind.EVALUATION, "high", None),
        (FindingKind.COMPILE, "unknown", 0.9),
        (FindingKind.GC, "medium", 0.3),
        (FindingKind.PIPELINE_BUBBLE, "high", 0.2),
        (FindingKind.KILLED_RANK, "unknown", None),
    ]
    findings = [
        Finding(kind=kind, confidence=confidence, evidence="", advice="", estimated_gain_ratio=gain)
        for kind, confidence, gain in rows
    ]
    assert [str(finding.kind) for finding in ordered(findings)] == [
        *("killed_rank", "pipeline_bubble", "gc", "compile", "evaluation")
    ]
