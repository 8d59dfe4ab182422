"""Stops of progress in runs made by hand: who waited for whom, who is to blame, and what stays unknown."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, message, phase, rank, run, stall, step
from traincope.analysis import Analysis, FaultKind, FindingKind, Hang, HangKind, analyze
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.hangs.hang import Differs
from traincope.events import BLOCK_STEPS, OPEN, Flag, Kind, Phase
from traincope.store import LauncherNote, Look, RankRecords
from traincope.store.job.hang_notices import StopState
from traincope.timeline import build_timeline
from traincope.topology import ClusterNode, Scheduler

MS = 1_000_000
S = 1_000 * MS
NUM_STEPS = 5
STOP_NS = NUM_STEPS * 100 * MS
"""Begin of the step in which the run stops. Each step before takes 100 ms."""
LAST_NS = STOP_NS + 20 * MS
"""The last record of each rank."""
SEEN_NS = LAST_NS + 34 * S
WORLD = group("dp", 0, 1)

FAULTY = """Thread 0x00007f2 (most recent call first):
  File "/x/flush.py", line 3 in loop

Current thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/train.py", line 9 in load
  File "/home/me/train.py", line 41 in main
"""
WAITING = """Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3112 in all_reduce
  File "/home/me/train.py", line 30 in main
"""
IN_BACKWARD = """Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 869 in _engine_run_backward
  File "/home/me/train.py", line 30 in main
"""
ENDING = """Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/traincope/startup/training.py", line 120 in excepthook
"""
DEBUGGING = """Current thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/cmd.py", line 126 in cmdloop
  File "/usr/lib/python3.11/pdb.py", line 338 in interaction
  File "/home/me/train.py", line 9 in main
"""


def steps(*, at: int = NUM_STEPS, detailed: bool = True) -> list[Row]:
    """Complete steps, each with one all-reduce on the rank's first group, and the open step."""
    flags = Flag.DETAILED if detailed else 0
    rows = [step(number, number * 100 * MS, (number + 1) * 100 * MS, flags=flags) for number in range(at)]
    if detailed:
        for number in range(at):
            begin = number * 100 * MS + 50 * MS
            rows.append(collective(begin, begin + 10 * MS, name="all_reduce", sequence=number, at=number))
    return [*rows, step(at, at * 100 * MS, OPEN, flags=flags)]


def waiting(*, on: int = 0, sequence: int = NUM_STEPS, name: str = "all_reduce", after_ns: int = 20 * MS) -> list[Row]:
    """A synchronous collective that does not end, on the rank's n-th group."""
    call = collective(STOP_NS + after_ns, OPEN, name=name, group=on, sequence=sequence, at=NUM_STEPS)
    return [call, stall(call, call.start_ns, OPEN)]


def looked(
    records: RankRecords, stack: str = "", *, state: str = "S", at_ns: int = SEEN_NS, locked: bool = False
) -> RankRecords:
    """The rank, whose process the agent saw."""
    look = Look(at_ns=at_ns, state=state, stack=stack, locked=locked, by_agent=True)
    probes = {**records.info.probes, "waits": "on"}
    return replace(records, looks=(look,), info=replace(records.info, probes=probes))


def victim(number: int, *groups_of: object, on: int = 0, sequence: int = NUM_STEPS) -> RankRecords:
    groups = groups_of or (WORLD,)
    records = rank(number, *steps(), *waiting(on=on, sequence=sequence), groups=groups, ending=None)  # type: ignore[arg-type]
    return looked(records, WAITING)


def stuck(number: int, *groups_of: object, stack: str = FAULTY, state: str = "S", locked: bool = False) -> RankRecords:
    """A rank that stopped in forward, before any collective of the step."""
    groups = groups_of or (WORLD,)
    rows = [*steps(), phase(Phase.FORWARD, STOP_NS + 10 * MS, OPEN, at=NUM_STEPS)]
    records = rank(number, *rows, groups=groups, ending=None)  # type: ignore[arg-type]
    return looked(records, stack, state=state, locked=locked)


def analysis(
    *ranks: RankRecords, versions: dict[str, str] | None = None, notes: Sequence[LauncherNote] = ()
) -> Analysis:
    made = run(*ranks)
    info = made.info if versions is None else replace(made.info, versions=versions)
    return analyze(build_timeline(replace(made, info=info, launcher=tuple(notes))))


def hangs(*ranks: RankRecords) -> tuple[Hang, ...]:
    return analysis(*ranks).hangs


def only(*ranks: RankRecords) -> Hang:
    (hang,) = hangs(*ranks)
    return hang


@pytest.mark.parametrize(
    ("culprit", "lasted_s", "state"),
    [
        (stuck(1), 34, StopState.STALL),
        (stuck(1), 59, StopState.STALL),
        (stuck(1), 61, StopState.HANG),
        (stuck(1, state="R"), 34, StopState.STALL),
        (stuck(1, state="T"), 34, StopState.HANG),
        (stuck(1, locked=True), 34, StopState.HANG),
    ],
    ids=["asleep", "for a minute", "longer", "at work", "stopped", "at a lock"],
)
def test_a_stop_is_a_hang_by_evidence_or_after_a_minute(culprit: RankRecords, lasted_s: int, state: StopState) -> None:
    at_ns = LAST_NS + lasted_s * S
    ranks = [
        replace(each, looks=tuple(replace(look, at_ns=at_ns) for look in each.looks)) for each in (victim(0), culprit)
    ]
    hang = only(*ranks)
    assert (hang.kind, hang.culprits, hang.state) == (HangKind.STUCK, (1,), state)
    kind = FaultKind.HANG if state is StopState.HANG else FaultKind.STALL
    assert (hang.fault_kind, (hang.cannot_go_on is None)) == (kind, lasted_s != 34 or state is StopState.STALL)


def test_a_time_that_the_user_sets_replaces_the_minute() -> None:
    made = run(victim(0), stuck(1))
    for seconds, state in (("20", "hang"), ("40", "stall"), ("0", "stall"), ("soon", "stall")):
        environment = {"TRAINCOPE_HANG_SECONDS": seconds}
        timeline = build_timeline(replace(made, info=replace(made.info, environment=environment)))
        assert [hang.state for hang in analyze(timeline).hangs] == [state]


def test_a_run_of_long_steps_may_pause_for_longer() -> None:
    """Steps of 8 s: a stop of 70 s is a hang only after 80 s."""
    rows = [step(at, at * 8 * S, (at + 1) * 8 * S, flags=Flag.DETAILED) for at in range(NUM_STEPS)]
    begin_ns = NUM_STEPS * 8 * S
    rows.append(step(NUM_STEPS, begin_ns, OPEN, flags=Flag.DETAILED))
    call = collective(begin_ns + S, OPEN, name="all_reduce", at=NUM_STEPS)
    for lasted_s, state in ((70, "stall"), (82, "hang")):
        ranks = [
            looked(rank(0, *rows, call, stall(call, call.start_ns, OPEN), groups=[WORLD], ending=None), WAITING),
            looked(rank(1, *rows, groups=[WORLD], ending=None), FAULTY),
        ]
        at_ns = begin_ns + S + lasted_s * S
        seen = [replace(each, looks=tuple(replace(look, at_ns=at_ns) for look in each.looks)) for each in ranks]
        assert only(*seen).state == state


def test_the_rank_that_did_not_join_is_the_culprit() -> None:
    hang = only(victim(0), stuck(1))
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.STUCK, (1,), (0,), HIGH)
    assert (hang.axis, hang.collective, hang.step) == ("dp", "all_reduce", NUM_STEPS)
    assert hang.call_site == "train.py:9"
    assert hang.stack == ("wait (threading.py:327)", "load (train.py:9)", "main (train.py:41)")
    assert (hang.since_ns, hang.until_ns) == (LAST_NS, SEEN_NS)
    waited = "rank 0 waited for it in all_reduce on dp, at train.py:30"
    assert hang.evidence == f"rank 1 stood at train.py:9 for 34.0 s; {waited}"
    assert hang.detected_after_seconds == 34.0


@pytest.mark.parametrize("locked", [False, True], ids=["stall", "hang"])
def test_the_verdict_and_the_faults_begin_with_the_stop(*, locked: bool) -> None:
    result = analysis(victim(0), stuck(1, locked=locked))
    first = result.verdict[0]
    kind = FindingKind.HANG if locked else FindingKind.STALL
    assert (first.kind, first.ranks, first.steps) == (kind, (1,), (NUM_STEPS,))
    more = "" if locked else " It may go on by itself."
    assert first.advice == f"Look at train.py:9 (process 1001 on host-boot).{more}"
    (fault,) = (fault for fault in result.faults if fault.kind == kind)
    assert (fault.ranks, fault.step, fault.at_ns, fault.lasted_ns) == ((1,), NUM_STEPS, LAST_NS, 34 * S)


def test_the_advice_names_the_checkpoint_and_a_host_that_may_be_the_cause() -> None:
    saved = Row(
        kind=Kind.PHASE,
        phase=Phase.CHECKPOINT_STALL,
        start_ns=390 * MS,
        end_ns=399 * MS,
        name="save checkpoint",
        step=3,
    )
    node = ClusterNode(scheduler=Scheduler.SLURM, name="n17")
    rows = [*steps(), saved, phase(Phase.FORWARD, STOP_NS + 10 * MS, OPEN, at=NUM_STEPS)]
    culprit = rank(1, *rows, groups=[WORLD], ending=None)
    culprit = replace(culprit, info=replace(culprit.info, node=node))
    assert analysis(victim(0), looked(culprit, FAULTY, locked=True)).verdict[0].advice == (
        "Look at train.py:9 (process 1001 on host-boot). Restart from the checkpoint of step 3."
    )
    assert (
        analysis(victim(0), looked(culprit, locked=True))
        .verdict[0]
        .advice.endswith(
            "Restart from the checkpoint of step 3. "
            "If the host is the cause, take it out: scontrol update nodename=n17 state=drain reason=traincope"
        )
    )


def test_the_run_lasts_as_long_as_the_hang() -> None:
    """Time does not end at the last record: a hang of 34 s is lost time."""
    result = analysis(victim(0), stuck(1))
    assert result.end_ns == SEEN_NS
    assert result.goodput is not None
    assert result.goodput.elapsed_ns == SEEN_NS


def test_without_permission_to_read_a_stack_it_says_what_the_kernel_shows_and_why() -> None:
    """Two looks: the process used no CPU time in between."""
    culprit = stuck(1, stack="")
    (look,) = culprit.looks
    asked = replace(
        look, wait_channel="hrtimer_nanosleep", system_call="230", cpu_ns=5 * S, no_stack="py-spy is not installed"
    )
    again = replace(asked, at_ns=look.at_ns + 2 * S, no_stack="")
    hang = only(victim(0), replace(culprit, looks=(asked, again)))
    assert (hang.culprits, hang.call_site) == ((1,), None)
    assert hang.evidence == (
        "rank 1 entered no collective for 34.0 s (in forward); its process sleeps in hrtimer_nanosleep "
        "(system call 230), used 0.00 s of CPU time in 2.00 s; no stack is known: py-spy is not installed; "
        "rank 0 waited for it in all_reduce on dp, at train.py:30"
    )


def test_without_a_stack_the_records_name_the_phase() -> None:
    hang = only(victim(0), stuck(1, stack=""))
    assert (hang.culprits, hang.confidence, hang.call_site, hang.doing) == ((1,), MEDIUM, None, "in forward")
    assert hang.evidence.startswith("rank 1 entered no collective for 34.0 s (in forward)")


def test_a_process_that_ends_is_not_named_with_a_line_of_ours() -> None:
    """After Ctrl-C the training's code is over, and the hook at its end runs."""
    hang = only(victim(0), stuck(1, stack=ENDING))
    assert (hang.call_site, hang.doing) == (None, "ending its process")


@pytest.mark.parametrize("ending", [None, "KeyboardInterrupt"])
def test_a_rank_that_answers_only_when_it_is_interrupted_stood_where_it_was_seen_before(ending: str | None) -> None:
    """C code that held Python's lock gave it back after Ctrl-C."""
    before = stuck(1)
    answer = Look(at_ns=SEEN_NS + S, stack=ENDING)
    info = replace(before.info, ending=ending)
    hang = only(victim(0), replace(before, info=info, looks=(*before.looks, answer)))
    assert (hang.culprits, hang.call_site) == ((1,), "train.py:9")
    unseen = only(victim(0), replace(before, info=replace(info, ending="KeyboardInterrupt"), looks=(answer,)))
    assert (unseen.culprits, unseen.doing) == ((1,), "in forward")


def test_a_stopped_process_is_called_stopped() -> None:
    hang = only(victim(0), stuck(1, stack="", state="T"))
    assert (hang.culprits, hang.confidence, hang.doing) == ((1,), HIGH, "stopped by a signal (SIGSTOP)")


@pytest.mark.parametrize("culprit", [stuck(1, state="t"), stuck(1, stack=DEBUGGING)])
@pytest.mark.parametrize("hours", [0, 8])
def test_a_rank_in_a_debugger_is_no_hang(culprit: RankRecords, hours: int) -> None:
    """A person may take any time, also where no record shows who waits."""
    later = hours * 3_600 * S

    def seen_later(records: RankRecords) -> RankRecords:
        return replace(records, looks=tuple(replace(look, at_ns=look.at_ns + later) for look in records.looks))

    assert hangs(seen_later(victim(0)), seen_later(culprit)) == ()
    between = replace(light(1, ""), looks=culprit.looks)
    assert hangs(seen_later(light(0, WAITING)), seen_later(between)) == ()


def test_without_evidence_of_life_the_culprit_is_unknown() -> None:
    hang = only(victim(0), replace(stuck(1), looks=()))
    assert (hang.kind, hang.culprits, hang.suspects, hang.confidence) == (HangKind.UNKNOWN, (), (1,), UNKNOWN)
    assert "no evidence shows whether its process lived" in hang.evidence


def test_a_stack_from_before_the_last_progress_counts_as_none() -> None:
    """A job that is asked for its stacks by SIGUSR1, and goes on, must not be blamed for that line later."""
    old = replace(stuck(1), looks=(Look(at_ns=STOP_NS, stack=FAULTY), Look(at_ns=SEEN_NS, state="S")))
    hang = only(victim(0), old)
    assert (hang.culprits, hang.call_site) == ((1,), None)


def test_a_culprit_in_communication_that_no_record_covers_stays_unknown() -> None:
    hang = only(victim(0), stuck(1, stack=WAITING))
    assert (hang.kind, hang.suspects) == (HangKind.UNKNOWN, (1,))
    assert "communication that no record covers" in hang.evidence


def test_a_culprit_that_dropped_records_stays_unknown() -> None:
    dropped = Row(kind=Kind.DROPPED, start_ns=STOP_NS, end_ns=STOP_NS, value=3)
    culprit = rank(1, *steps(), phase(Phase.FORWARD, STOP_NS + 10 * MS, OPEN), dropped, groups=[WORLD], ending=None)
    hang = only(victim(0), looked(culprit, FAULTY))
    assert (hang.kind, hang.suspects) == (HangKind.UNKNOWN, (1,))


@pytest.mark.parametrize(("seconds", "found"), [(4.9, False), (5.1, True)])
def test_a_shorter_pause_than_five_seconds_is_no_hang(seconds: float, found: bool) -> None:
    seen_ns = LAST_NS + round(seconds * S)
    ranks = [replace(each, looks=(replace(each.looks[0], at_ns=seen_ns),)) for each in (victim(0), stuck(1))]
    assert bool(hangs(*ranks)) is found


@pytest.mark.parametrize(("seconds", "found"), [(9.2, False), (9.4, True)])
def test_how_long_a_run_may_stand_still_is_learned_from_its_steps(seconds: float, found: bool) -> None:
    """The longest step took 3.1 s, so 9.3 s are no hang."""
    assert bool(hangs(*after_a_long_step(3 * S, seen_after_ns=round(seconds * S), now=Phase.FORWARD))) is found


def after_a_long_step(
    by_ns: int, *, seen_after_ns: int, now: Phase, pause: Phase | None = None
) -> tuple[RankRecords, RankRecords]:
    """Step 3 took `by_ns` longer, perhaps for a pause. Now rank 1 stands still in a phase, and rank 0 waits for it."""
    begin = 3 * 100 * MS

    def late(rows: Sequence[Row]) -> list[Row]:
        return [
            replace(
                row,
                start_ns=row.start_ns + (by_ns if row.start_ns > begin else 0),
                end_ns=row.end_ns if row.end_ns == OPEN else row.end_ns + (by_ns if row.end_ns > begin else 0),
            )
            for row in rows
        ]

    look = Look(at_ns=LAST_NS + by_ns + seen_after_ns, stack=FAULTY)
    paused = [] if pause is None else [phase(pause, begin + 10 * MS, begin + 10 * MS + by_ns, at=3)]
    calls = [*steps(), *waiting()]
    waits = looked(rank(0, *late(calls), *paused, groups=[WORLD], ending=None), WAITING, at_ns=look.at_ns)
    rows = late([*steps(), phase(now, STOP_NS + 10 * MS, OPEN, at=NUM_STEPS)])
    return waits, replace(rank(1, *rows, *paused, groups=[WORLD], ending=None), looks=(look,))


@pytest.mark.parametrize(
    ("pause", "longest", "seconds", "found"),
    [
        (Phase.CHECKPOINT_STALL, 12, 35.9, False),
        (Phase.CHECKPOINT_STALL, 12, 36.1, True),
        (Phase.EVALUATION, 12, 36.1, True),
        (Phase.GC, 12, 36.1, True),
        (Phase.CHECKPOINT_STALL, 2, 29.9, False),
        (Phase.CHECKPOINT_STALL, 2, 30.1, True),
        (Phase.COMPILE, 12, 599, False),
        (Phase.COMPILE, 12, 601, True),
    ],
)
def test_how_long_a_pause_may_take_is_learned_from_the_ones_before(
    pause: Phase, longest: int, seconds: float, found: bool
) -> None:
    """Three times the longest so far, and 30 s at least. The next compilation may be of another size."""
    ranks = after_a_long_step(longest * S, seen_after_ns=round(seconds * S), now=pause, pause=pause)
    assert [hang.culprits for hang in hangs(*ranks)] == [(1,)] * found


def test_a_pause_of_another_kind_teaches_nothing_about_this_one() -> None:
    ranks = after_a_long_step(12 * S, seen_after_ns=599 * S, now=Phase.CHECKPOINT_STALL, pause=Phase.EVALUATION)
    assert hangs(*ranks) == ()


@pytest.mark.parametrize(("seconds", "found"), [(4.9, False), (5.1, True)])
def test_a_long_checkpoint_does_not_make_the_other_steps_look_long(seconds: float, found: bool) -> None:
    """The step with it took 60.1 s, and 0.1 s without it."""
    ranks = after_a_long_step(60 * S, seen_after_ns=round(seconds * S), now=Phase.FORWARD, pause=Phase.CHECKPOINT_STALL)
    assert bool(hangs(*ranks)) is found


@pytest.mark.parametrize("pause", [Phase.CHECKPOINT_STALL, Phase.EVALUATION, Phase.COMPILE, Phase.GC])
def test_a_rank_in_a_phase_that_may_take_long_is_no_hang(pause: Phase) -> None:
    rows = [*steps(), phase(pause, STOP_NS + 10 * MS, OPEN)]
    assert hangs(victim(0), looked(rank(1, *rows, groups=[WORLD], ending=None), FAULTY)) == ()


def test_a_chain_of_waits_leads_to_its_first_cause() -> None:
    """Rank 0 waits for rank 1 on tp, and rank 1 for rank 2 on dp: rank 2 is to blame for both."""
    tp, dp = group("tp", 0, 1), group("dp", 1, 2)
    middle = looked(
        rank(1, *steps(), *waiting(on=1, sequence=0, after_ns=10 * MS), groups=[tp, dp], ending=None), WAITING
    )
    last = rank(
        2,
        *steps(detailed=True)[:NUM_STEPS],
        step(NUM_STEPS, STOP_NS, OPEN, flags=Flag.DETAILED),
        groups=[dp],
        ending=None,
    )
    hang = only(victim(0, tp), middle, looked(last, FAULTY))
    assert (hang.kind, hang.culprits, hang.victims, hang.axis) == (HangKind.STUCK, (2,), (0, 1), "dp")
    assert hang.evidence.endswith("rank 1 waited for it in all_reduce on dp, at train.py:30; rank 0 waited for rank 1")


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    """Neither group was used before."""
    groups = [WORLD, group("cp", 0, 1), group("tp", 0, 1)]
    one = looked(rank(0, *steps(), *waiting(on=1, sequence=0), groups=groups, ending=None), WAITING)
    other = looked(rank(1, *steps(), *waiting(on=2, sequence=0), groups=groups, ending=None), WAITING)
    hang = only(one, other)
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.DEADLOCK, (0, 1), (), HIGH)
    assert hang.evidence.startswith(
        "rank 0 waited for rank 1 in all_reduce on cp, at train.py:30; rank 1 waited for rank 0 in all_reduce on tp"
    )


def test_another_collective_of_a_step_that_all_completed_names_no_rank_of_a_circle() -> None:
    """In the step before the last one, rank 0 issued one more on a group of its own."""
    groups = [WORLD, group("cp", 0, 1), group("tp", 0, 1), group("own", 0)]
    begin_ns = STOP_NS - 10 * MS
    more = collective(begin_ns, begin_ns + MS, name="all_reduce", group=3, at=NUM_STEPS - 1)
    one = looked(rank(0, *steps(), more, *waiting(on=1, sequence=0), groups=groups, ending=None), WAITING)
    other = looked(rank(1, *steps(), *waiting(on=2, sequence=0), groups=groups[:3], ending=None), WAITING)
    hang = only(one, other)
    assert (hang.kind, hang.culprits) == (HangKind.DEADLOCK, (0, 1))


def test_in_a_circle_of_waits_the_rank_that_left_its_habit_is_named() -> None:
    """Both issue an all-reduce on dp in every step. In the last one, rank 1 issues it on cp instead."""
    groups = [group("dp", 0, 1), group("cp", 0, 1)]
    other = looked(rank(1, *steps(), *waiting(on=1, sequence=0), groups=groups, ending=None), WAITING)
    hang = only(looked(rank(0, *steps(), *waiting(), groups=groups, ending=None), WAITING), other)
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.MISMATCH, (1,), (0,), MEDIUM)
    assert hang.evidence.endswith("rank 1 issued other collectives than in earlier steps")


def test_a_rank_that_issues_the_usual_collectives_in_another_order_is_named_with_that() -> None:
    """Each step has an all-reduce on shard, then one on replicate. In the last one, rank 1 begins with replicate."""
    groups = [group("shard", 0, 1), group("replicate", 0, 1)]
    second = [
        collective(number * 100 * MS + 70 * MS, number * 100 * MS + 80 * MS, name="all_reduce", group=1)
        for number in range(NUM_STEPS)
    ]
    usual = [*steps(), *(replace(row, sequence=at, step=at) for at, row in enumerate(second))]
    usual.sort(key=lambda row: row.start_ns)
    hang = only(
        looked(rank(0, *usual, *waiting(), groups=groups, ending=None), WAITING),
        looked(rank(1, *usual, *waiting(on=1), groups=groups, ending=None), WAITING),
    )
    assert (hang.kind, hang.culprits, hang.differs) == (HangKind.MISMATCH, (1,), Differs.ORDER)
    assert "waited for rank 1 in all_reduce on shard" in hang.evidence
    assert hang.evidence.endswith(
        "in step 5, rank 1 issued the same collectives in another order than in earlier steps"
    )


PIPELINE_STEPS = 9


def stage_of(number: int, microbatches: int, *, done: int) -> RankRecords:
    """Stage of three of a pipeline written by hand. Each step passes 3 microbatches on, then their gradients back.

    The last step has so many `microbatches`, and the message after the first `done` ones does not end. The step of
    a stage begins after it has received once, so the first message of a step counts to the window before.
    """
    before, after = number - 1, number + 1
    rows: list[Row] = []
    counts = Counter[tuple[str, int, int]]()
    for at in range(PIPELINE_STEPS + 1):
        is_last, begin = at == PIPELINE_STEPS, at * 100 * MS
        passed = microbatches if is_last else 3
        there, back = [("recv", before), ("send", after)] * passed, [("recv", after), ("send", before)] * passed
        sent = [(name, peer) for name, peer in there + back if 0 <= peer < 3]
        rows.append(step(at, begin + 2 * MS, OPEN if is_last else begin + 102 * MS, flags=Flag.DETAILED))
        for place, (name, peer) in enumerate(sent[: done + 1] if is_last else sent):
            own = at - 1 if number and at and not place else at
            start, window = begin + (1 + 5 * place) * MS, own // BLOCK_STEPS * BLOCK_STEPS
            end = OPEN if is_last and place == done else start + MS
            row = message(name, start, end, peer=peer, sequence=counts[name, peer, window], at=own)
            counts[name, peer, window] += 1
            rows.append(replace(row, window=window))
    rows.append(stall(rows[-1], rows[-1].start_ns, OPEN))
    records = rank(number, *rows, groups=[group("pp", 0, 1, 2)], ending=None)
    return looked(records, WAITING, at_ns=PIPELINE_STEPS * 100 * MS + 40 * S)


def test_a_stage_that_leaves_a_message_out_is_named_if_most_do_what_they_always_did() -> None:
    """In the last step, stage 1 has two microbatches and waits for a gradient, and stage 2 for the third one."""
    hang = only(stage_of(0, 3, done=2), stage_of(1, 2, done=4), stage_of(2, 3, done=2))
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.MISMATCH, (1,), (0, 2), MEDIUM)
    assert hang.evidence.endswith("rank 1 issued other messages, or fewer, than in earlier steps")


def test_stages_that_leave_their_habit_together_are_not_named_alone() -> None:
    """Stages 0 and 1 have two microbatches now, and stage 2 waits for the third one: it may be the one at fault."""
    hang = only(stage_of(0, 2, done=2), stage_of(1, 2, done=4), stage_of(2, 3, done=2))
    assert (hang.kind, hang.culprits) == (HangKind.DEADLOCK, (1, 2))


def test_a_stage_that_waits_for_its_usual_message_is_part_of_a_deadlock() -> None:
    """Rank 0 sends to rank 1 in every step. In the last one it enters a barrier before."""
    groups = [group("pp", 0, 1)]

    def stage(number: int, name: str, last: Row) -> RankRecords:
        sent = [
            message(name, at * 100 * MS + 50 * MS, at * 100 * MS + 60 * MS, peer=1 - number, sequence=at, at=at)
            for at in range(NUM_STEPS)
        ]
        plain = [row for row in steps() if row.kind is Kind.STEP]
        rows = [*plain, *sent, last, stall(last, last.start_ns, OPEN)]
        return looked(rank(number, *rows, groups=groups, ending=None), WAITING)

    barrier = collective(LAST_NS, OPEN, name="barrier", at=NUM_STEPS)
    recv = message("recv", LAST_NS, OPEN, peer=0, sequence=NUM_STEPS, at=NUM_STEPS)
    hang = only(stage(0, "send", barrier), stage(1, "recv", recv))
    assert (hang.kind, hang.culprits, hang.victims) == (HangKind.DEADLOCK, (0, 1), ())
    waited = "rank 0 waited for rank 1 in barrier on pp, at train.py:30"
    assert hang.evidence.startswith(f"{waited}; rank 1 waited for rank 0 in recv on pp")


def neighbour(number: int) -> RankRecords:
    """One of a ring of four. After each all-reduce, it receives from the rank before it and sends to the one after it.

    Rank 2 sends nothing the last time, and goes on. So rank 3 does not get into the next all-reduce.
    """
    before, after, rows = (number - 1) % 4, (number + 1) % 4, steps()
    for at in range(NUM_STEPS):
        is_last, begin = at == NUM_STEPS - 1, at * 100 * MS + 80 * MS
        end = OPEN if is_last and number == 3 else begin + 5 * MS
        rows.append(message("recv", begin, end, peer=before, sequence=at, at=at, flags=Flag.ASYNC))
        if not (is_last and number == 2):
            rows.append(message("send", begin + MS, begin + 6 * MS, peer=after, sequence=at, at=at, flags=Flag.ASYNC))
    if number == 3:
        rows = [row for row in rows if row.start_ns != STOP_NS]
        (recv,) = (row for row in rows if row.end_ns == OPEN)
        last = [stall(recv, recv.start_ns, OPEN)]
    else:
        last = waiting()
    return looked(rank(number, *rows, *last, groups=[group("dp", 0, 1, 2, 3)], ending=None), WAITING)


def test_a_rank_that_left_out_a_message_and_went_on_to_a_collective_is_named() -> None:
    """The missing message belongs to the step before the one that is open."""
    hang = only(*map(neighbour, range(4)))
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.MISMATCH, (2,), (0, 1, 3), MEDIUM)
    assert "rank 3 waited for rank 2 in recv on dp" in hang.evidence
    assert hang.evidence.endswith("rank 2 issued other messages, or fewer, than in earlier steps")


def test_two_ranks_that_both_send_first_get_advice_about_messages() -> None:
    ranks = []
    for number in range(2):
        send = message("send", LAST_NS, OPEN, peer=1 - number, at=NUM_STEPS)
        rows = [*steps(), send, stall(send, LAST_NS, OPEN)]
        ranks.append(looked(rank(number, *rows, groups=[group("pp", 0, 1)], ending=None), WAITING))
    first = analysis(*ranks).verdict[0]
    assert (first.kind, first.ranks) == (FindingKind.HANG, (0, 1))
    assert first.advice.startswith("Let one side send while the other receives")


def test_a_rank_that_left_its_loop_early_is_named() -> None:
    rows = steps()[:-1]
    left = rank(1, *rows, groups=[WORLD], ending="clean")
    hang = only(victim(0), left)
    assert (hang.kind, hang.culprits, hang.doing) == (HangKind.LEFT, (1,), "had ended its run")


IN_TEARDOWN = """Thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2407 in destroy_process_group
  File "/home/me/train.py", line 50 in main
"""


@pytest.mark.parametrize(
    ("stack", "seconds", "kind"),
    [
        (IN_TEARDOWN, 4.9, None),
        (IN_TEARDOWN, 5.1, HangKind.STUCK),
        (FAULTY, 599, None),
        (FAULTY, 601, HangKind.UNKNOWN),
    ],
)
def test_a_rank_that_all_others_left_behind_hangs_in_the_teardown(
    stack: str, seconds: float, kind: HangKind | None
) -> None:
    """Elsewhere it may save the last checkpoint: it is only a suspect, after ten minutes."""
    ended, last = (rank(number, *steps()[:-1], groups=[WORLD], ending=end) for number, end in ((0, "clean"), (1, None)))
    found = hangs(ended, looked(last, stack, at_ns=STOP_NS + round(seconds * S)))
    assert [hang.kind for hang in found] == ([] if kind is None else [kind])
    if kind is HangKind.STUCK:
        assert (found[0].culprits, found[0].victims, found[0].confidence) == ((1,), (), MEDIUM)
        assert found[0].evidence == (
            "rank 1 stood at train.py:50 for 5.10 s in destroy_process_group; all other ranks have ended"
        )
    elif kind is HangKind.UNKNOWN:
        assert (found[0].culprits, found[0].suspects) == ((), (1,))


def test_a_collective_that_all_joined_names_no_rank() -> None:
    hang = only(victim(0), victim(1))
    assert (hang.kind, hang.culprits, hang.suspects, hang.victims) == (HangKind.NONE_COMPLETES, (), (), (0, 1))
    assert hang.confidence == MEDIUM


def test_two_stuck_ranks_with_stacks_are_both_named() -> None:
    three = group("dp", 0, 1, 2)
    hang = only(victim(0, three), stuck(1, three), stuck(2, three))
    assert (hang.kind, hang.culprits, hang.victims) == (HangKind.STUCK, (1, 2), (0,))


def test_of_two_missing_ranks_without_stacks_none_is_named() -> None:
    three = group("dp", 0, 1, 2)
    hang = only(victim(0, three), stuck(1, three, stack=""), stuck(2, three))
    assert (hang.kind, hang.culprits, hang.suspects) == (HangKind.UNKNOWN, (), (1, 2))


def light(number: int, stack: str, *, size: int = 2) -> RankRecords:
    """A rank between two windows: its collectives are not recorded."""
    rows = [*steps(detailed=False), phase(Phase.FORWARD, LAST_NS, OPEN, at=NUM_STEPS)]
    return looked(rank(number, *rows, groups=[group("dp", *range(size))], ending=None), stack)


def test_between_windows_the_only_rank_outside_of_communication_is_named() -> None:
    hang = only(light(0, IN_BACKWARD, size=3), light(1, FAULTY, size=3), light(2, WAITING, size=3))
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.STUCK, (1,), (0, 2), MEDIUM)


@pytest.mark.parametrize("stacks", [(WAITING, IN_BACKWARD), (WAITING, WAITING)])
def test_between_windows_other_stacks_leave_it_unknown(stacks: tuple[str, str]) -> None:
    hang = only(*(light(number, stack) for number, stack in enumerate(stacks)))
    assert (hang.kind, hang.culprits, hang.confidence) == (HangKind.UNKNOWN, (), UNKNOWN)


@pytest.mark.parametrize(("seconds", "found"), [(590, False), (610, True)])
def test_ranks_that_all_work_on_their_own_wait_for_nobody(seconds: int, found: bool) -> None:
    """All ranks prepare data between two epochs, for much longer than a step."""
    ranks = [light(number, FAULTY) for number in range(2)]
    seen = [replace(each, looks=(replace(each.looks[0], at_ns=LAST_NS + seconds * S),)) for each in ranks]
    assert [hang.kind for hang in hangs(*seen)] == [HangKind.UNKNOWN] * found


def test_a_rank_whose_waits_the_recorder_does_not_see_is_not_named_by_its_stack() -> None:
    """It may stand in a wait of its own code, e.g. `work.wait()`."""
    unseen = [replace(each, info=replace(each.info, probes={})) for each in (light(0, WAITING), light(1, FAULTY))]
    assert only(*unseen).culprits == ()


def test_the_note_of_the_signal_that_ended_a_rank_hides_no_stack() -> None:
    """The launcher ended the job. The agent noted the signal, later than it saw the stacks."""
    culprit = stuck(1)
    ended = Look(at_ns=SEEN_NS + S, stack="No stack: the agent of the node saw that the signal ended the process.\n")
    hang = only(victim(0), replace(culprit, looks=(*culprit.looks, ended)))
    assert (hang.culprits, hang.call_site) == ((1,), "train.py:9")


def test_unless_its_stack_says_that_its_c_code_holds_pythons_lock() -> None:
    """Then it waits for no rank: torch waits without the lock."""
    head, main = FAULTY.split("Current thread 0x00007f1 ")
    held = f"{head}Thread 0x00007f1 holds Python's lock {main}"
    unseen = [replace(each, info=replace(each.info, probes={})) for each in (light(0, WAITING), light(1, held))]
    assert only(*unseen).culprits == (1,)


LOCKED = """Thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select

Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/train.py", line 9 in main
"""
AT_A_LINE = """Thread 0x00007f1 (most recent call first):
  File "/home/me/train.py", line 9 in main
"""
WITH_A_THREAD = f"{WAITING}\n{LOCKED}"


@pytest.mark.parametrize(
    ("stack", "channel", "culprits"),
    [
        (AT_A_LINE, "hrtimer_nanosleep", (1,)),
        (AT_A_LINE, "futex_do_wait", ()),
        (AT_A_LINE, "", ()),
        (LOCKED, "futex_do_wait", (1,)),
        (WITH_A_THREAD, "hrtimer_nanosleep", ()),
    ],
    ids=["asleep", "perhaps in a wait", "hidden", "at a lock of Python", "next to a thread that communicates"],
)
def test_without_the_recorder_kernel_and_threads_show_that_a_rank_waits_for_no_other(
    stack: str, channel: str, culprits: tuple[int, ...]
) -> None:
    """The job was started without traincope. A line of the training may be `work.wait()`."""
    ranks = [light(0, WAITING), light(1, stack)]
    seen = [replace(each, info=replace(each.info, probes={})) for each in ranks]
    seen[1] = replace(seen[1], looks=(replace(seen[1].looks[0], wait_channel=channel),))
    assert only(*seen).culprits == culprits


def test_with_a_rank_that_cannot_be_seen_no_stack_decides() -> None:
    """It may be the one for which all others wait."""
    seen = run(light(0, WAITING, size=3), light(1, FAULTY, size=3))
    world = replace(seen, info=replace(seen.info, world_size=3), missing=(2,))
    (hang,) = analyze(build_timeline(world)).hangs
    assert (hang.culprits, hang.suspects) == ((), (1,))


def test_a_wait_for_a_dead_rank_is_no_hang() -> None:
    killed = LauncherNote(attempt=0, rank=1, exit_code=-9, first=True, at_wall_ns=LAST_NS)
    result = analysis(victim(0), replace(stuck(1), looks=()), notes=[killed])
    assert result.hangs == ()
    assert (result.verdict[0].kind, result.verdict[0].ranks) == (FindingKind.KILLED_RANK, (1,))


def test_ranks_that_wait_for_a_dead_rank_accuse_no_living_one() -> None:
    """Rank 1 ended without a word, by `os._exit(0)`. Rank 2 has not failed yet, in communication that no record
    covers.
    """
    three = group("dp", 0, 1, 2)
    gone = replace(stuck(1, three), looks=(), running=False)
    result = analysis(victim(0, three), gone, stuck(2, three, stack=WAITING))
    assert result.hangs == ()
    assert (result.verdict[0].kind, result.verdict[0].ranks) == (FindingKind.KILLED_RANK, (1,))


def test_a_kill_of_all_ranks_hides_no_hang() -> None:
    """A scheduler killed the job, and noted nothing."""
    hang = only(*(replace(each, running=False) for each in (victim(0), stuck(1))))
    assert (hang.kind, hang.culprits, hang.until_ns) == (HangKind.STUCK, (1,), SEEN_NS)


def test_a_rank_that_was_killed_after_it_stood_still_did_not_cause_the_stop() -> None:
    """The reader comes while a scheduler kills the ranks one by one."""
    hang = only(replace(victim(0), running=False), victim(1))
    assert (hang.kind, hang.culprits) == (HangKind.NONE_COMPLETES, ())


def test_the_kill_that_ends_a_hang_is_not_its_cause() -> None:
    """The launcher ends the others by SIGTERM, and the stopped rank by SIGKILL after that."""
    stop = LauncherNote(attempt=0, rank=None, exit_code=-15, first=False, at_wall_ns=SEEN_NS)
    killed = LauncherNote(attempt=0, rank=1, exit_code=-9, first=False, at_wall_ns=SEEN_NS + 30 * S)
    result = analysis(victim(0), stuck(1, stack="", state="T"), notes=[stop, killed])
    assert (result.verdict[0].kind, result.verdict[0].ranks) == (FindingKind.HANG, (1,))


def test_on_gpus_confidence_is_at_most_medium() -> None:
    """The host sees waits of the device only indirectly; it was not scored there."""
    result = analysis(victim(0), stuck(1), versions={"torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3"})
    assert result.hangs
    assert {hang.confidence for hang in result.hangs} <= {MEDIUM, UNKNOWN}


def test_on_gpus_a_line_outside_of_communication_names_no_rank() -> None:
    """It may be `loss.item()`, which waits for the device, and the device for another rank."""
    result = analysis(
        light(0, WAITING), light(1, FAULTY), versions={"torch": "2.13.0", "cuda": "12.8", "nccl": "2.27.3"}
    )
    assert [hang.culprits for hang in result.hangs] == [()]


def test_a_healthy_running_job_has_no_hang() -> None:
    """Everybody looks at it in the middle of a step."""
    ranks = [looked(rank(n, *steps(), *waiting(), groups=[WORLD], ending=None), WAITING, at_ns=LAST_NS) for n in (0, 1)]
    assert hangs(*ranks) == ()


def test_a_clean_run_has_no_hang() -> None:
    assert hangs(*(rank(number, *steps()[:-1], groups=[WORLD]) for number in (0, 1))) == ()
