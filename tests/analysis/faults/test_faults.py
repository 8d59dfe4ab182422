"""Faults and marks, each in a run made by hand, and none in a healthy run."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from tests.timeline.build import Row, collective, group, phase, rank, run, stall, step, timeline
from traincope.analysis import Fault, FaultKind, analyze
from traincope.analysis.faults.anomalies.logged_values import spikes
from traincope.analysis.faults.stacks import MAIN_ALONE, interrupted_thread
from traincope.events import GROUP_DESTROYED, OPEN, Flag, Kind, Phase
from traincope.store import Attempt, LauncherNote, Look, RankRecords
from traincope.store.job.requests import Cause, WindowRequest
from traincope.timeline import Timeline, build_timeline

MS = 1_000_000
S = 1_000_000_000
DP = group("dp", 0, 1)

HANGING = """Current thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/train.py", line 9 in main

"""
CRASH = "Segmentation fault (SIGSEGV) in wait (threading.py:327)"
TWO_THREADS = """Thread 0x00007f2 (most recent call first):
  File "/x/flush.py", line 3 in loop

Thread 0x00007f1 (most recent call first):
  File "/x/distributed_c10d.py", line 3112 in all_reduce
"""


def faults(of: Timeline, *, marks: bool = False) -> list[Fault]:
    return [fault for fault in analyze(of).faults if marks or not fault.is_mark]


def logged(name: str, values: list[float], *, first_step: int = 0) -> list[Row]:
    """One value per step of 10 ms."""
    return [
        Row(
            kind=Kind.SCALAR,
            start_ns=at * 10 * MS,
            end_ns=at * 10 * MS,
            name=name,
            step=first_step + at,
            value=struct.unpack("@q", struct.pack("@d", value))[0],
        )
        for at, value in enumerate(values)
    ]


def event(name: str, at_ns: int, *, details: int = 0, at: int = 0) -> Row:
    return Row(kind=Kind.EVENT, start_ns=at_ns, end_ns=at_ns, name=name, group=details, step=at)


def ended(
    number: int, *, last_ns: int, ending: str | None = None, signals: dict[str, str] | None = None, raised: str = ""
) -> RankRecords:
    """A rank that was in an all-reduce of step 1; `raised`: place of a recorded exception."""
    reduce = collective(last_ns - MS, OPEN, name="all_reduce", at=1)
    rows = [step(0, 0, 100 * MS), step(1, 100 * MS, OPEN), reduce, stall(reduce, last_ns, OPEN)]
    if raised:
        rows.append(event("exception", last_ns, details=1, at=1))
    records = rank(number, *rows, groups=[DP], ending=ending)
    details = {1: {"type": ending, "at": raised}} if raised else {}
    return replace(records, details=details, info=replace(records.info, signals=signals or {}))


def note(number: int | None, exit_code: int, *, first: bool = False, at_s: int = 1) -> LauncherNote:
    return LauncherNote(attempt=0, rank=number, exit_code=exit_code, first=first, at_wall_ns=at_s * S)


def noted(*ranks: RankRecords, notes: tuple[LauncherNote, ...], world_size: int | None = None) -> Timeline:
    return build_timeline(replace(run(*ranks, world_size=world_size), launcher=notes))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (0, []),
        (1, [(FaultKind.NO_END, "no end is recorded; its process group was destroyed before")]),
    ],
)
def test_a_process_that_vanishes_after_its_training_was_not_killed(
    code: int, found: list[tuple[FaultKind, str]]
) -> None:
    """Ray kills its workers when they have destroyed their group. If the command fails, why is not known."""
    records = rank(0, step(0, 0, 100 * MS), step(1, 100 * MS, 200 * MS), event(GROUP_DESTROYED, 201 * MS), ending=None)
    ends = faults(noted(process_of(records, running=False), notes=(note(None, code),)))
    assert [(end.kind, end.what) for end in ends] == found


def test_a_signal_after_the_training_is_no_fault_of_a_command_that_succeeds() -> None:
    records = rank(0, step(0, 0, 100 * MS), event(GROUP_DESTROYED, 101 * MS), ending=None)
    signalled = replace(records, info=replace(records.info, signals={"SIGTERM": HANGING}))
    assert faults(noted(signalled, notes=(note(None, 0),))) == []
    assert [end.kind for end in faults(noted(signalled, notes=(note(None, 1),)))] == [
        FaultKind.STOPPED,
        FaultKind.SIGNAL,
    ]


def test_a_process_that_vanishes_in_a_training_after_its_group_was_killed() -> None:
    records = rank(0, step(0, 0, 100 * MS), event(GROUP_DESTROYED, 101 * MS), step(1, 110 * MS, OPEN), ending=None)
    (end,) = faults(noted(process_of(records, running=False), notes=(note(None, 0),)))
    assert end.kind == FaultKind.KILLED


def test_a_healthy_run_has_no_fault() -> None:
    assert faults(timeline(rank(0, step(0, 0, 100), *logged("loss", [2.0] * 40)))) == []


def test_an_exception_has_its_place_and_later_ends_follow_it() -> None:
    first, second = faults(
        timeline(
            ended(0, last_ns=150 * MS, ending="ValueError", raised="model.py:41"),
            ended(1, last_ns=170 * MS, ending="RuntimeError", raised="ddp.py:7"),
        )
    )
    assert (first.kind, first.ranks, first.step, first.at_ns) == (FaultKind.EXCEPTION, (0,), 1, 150 * MS)
    assert (first.what, first.follows) == ("ValueError at model.py:41", False)
    assert (second.what, second.follows) == ("RuntimeError at ddp.py:7", True)


IN_A_WORKER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 31, in load
ValueError: bad sample in shard 7
"""


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("bad sample in shard 7", "ValueError: bad sample in shard 7 at data.py:31"),
        ("two\n\n lines", "ValueError: two at data.py:31"),
        (
            IN_A_WORKER,
            "ValueError: Caught ValueError in DataLoader worker process 0. ... ValueError: bad sample in shard 7 "
            "at data.py:31",
        ),
        ("x " * 400, f"ValueError: {'x ' * 97}[...] at data.py:31"),
        ("", "ValueError at data.py:31"),
    ],
)
def test_an_exception_has_its_message_and_its_callers(message: str, what: str) -> None:
    frames = ["/a/train.py:9 in main", "/a/b/loop.py:7 in train in a lambda", "/a/data.py:31 in load"]
    records = ended(0, last_ns=150 * MS, ending="ValueError", raised="data.py:31")
    details = {"type": "ValueError", "at": "data.py:31", "message": message, "traceback": frames}
    (fault,) = faults(timeline(replace(records, details={1: details})))
    assert (fault.what, fault.traceback) == (what, tuple(frames))
    assert fault.evidence == "called from loop.py:7 in a lambda, train.py:9 in main"


@pytest.mark.parametrize("kind", ["OutOfMemoryError", "MemoryError"])
def test_an_exception_of_a_memory_type_is_out_of_memory(kind: str) -> None:
    (fault,) = faults(timeline(ended(0, last_ns=150 * MS, ending=kind, raised="model.py:41")))
    assert fault.kind == FaultKind.OUT_OF_MEMORY


def test_an_exception_recorded_as_out_of_memory_is_out_of_memory() -> None:
    records = ended(0, last_ns=150 * MS, ending="RuntimeError", raised="model.py:41")
    details = {1: {"type": "RuntimeError", "at": "model.py:41", "out_of_memory": True}}
    known = timeline(replace(records, details=details))
    (fault,) = faults(known)
    assert (fault.kind, fault.what) == (FaultKind.OUT_OF_MEMORY, "RuntimeError at model.py:41, out of memory")
    assert "it raised RuntimeError at model.py:41, out of memory; it was in" in analyze(known).verdict[0].evidence


def test_a_rank_with_sigterm_follows_another_ranks_end() -> None:
    """Rank 0 waited for rank 1, so its last record is the older one. The time of its end is not recorded."""
    first, second = faults(
        timeline(
            ended(0, last_ns=120 * MS, signals={"SIGTERM": HANGING}),
            ended(1, last_ns=150 * MS, ending="ValueError", raised="model.py:41"),
        )
    )
    assert (first.ranks, first.kind, first.follows) == ((1,), FaultKind.EXCEPTION, False)
    assert (second.ranks, second.what, second.follows) == ((0,), "SIGTERM in wait (threading.py:327)", True)
    assert second.at_ns == first.at_ns


def test_sigterm_to_every_rank_stops_the_job_without_a_culprit() -> None:
    stopped = timeline(*(ended(number, last_ns=150 * MS, signals={"SIGTERM": HANGING}) for number in (0, 1)))
    job, *ranks = faults(stopped)
    assert (job.kind, job.ranks, job.what) == (FaultKind.STOPPED, (), "every rank got SIGTERM")
    assert [fault.follows for fault in ranks] == [True, True]
    assert analyze(stopped).verdict[0].kind == "stopped_job"


@pytest.mark.parametrize(
    ("other_ms", "noted_ms", "culprits"),
    [
        pytest.param(250, 245, (1,), id="the launcher noticed the end of rank 1, and answered"),
        pytest.param(201, 245, (), id="both got it at once"),
        pytest.param(250, 290, (), id="rank 0 got it before the end of rank 1 was noticed"),
        pytest.param(250, 0, (), id="torchrun's whole seconds prove nothing"),
    ],
)
def test_sigterm_to_one_rank_that_its_launcher_answers_names_that_rank(
    other_ms: int, noted_ms: int, culprits: tuple[int, ...]
) -> None:
    """Rank 1 got SIGTERM at 200 ms. `other_ms`: the same of rank 0. `noted_ms`: the noted end of rank 1."""

    def signalled(number: int, at_ms: int) -> RankRecords:
        records = ended(number, last_ns=150 * MS, signals={"SIGTERM": HANGING})
        return replace(records, looks=(Look(at_ns=at_ms * MS, stack=HANGING),))

    notes = [note(number, -15, first=number == 1) for number in (1, 0)]
    known = noted(
        *(signalled(number, at_ms) for number, at_ms in ((0, other_ms), (1, 200))),
        notes=tuple(replace(each, at_wall_ns=(noted_ms + 100 * (each.rank == 0)) * MS) for each in notes),
    )
    assert analyze(known).verdict[0].ranks == culprits
    assert analyze(known).verdict[0].kind == ("killed_rank" if culprits else "stopped_job")


@pytest.mark.parametrize(
    "ends",
    [
        noted(ended(0, last_ns=150 * MS), notes=(note(0, -15, first=True),), world_size=2),
        noted(ended(0, last_ns=150 * MS, signals={"SIGTERM": HANGING}), notes=(), world_size=2),
    ],
    ids=["noted", "recorded"],
)
def test_sigterm_accuses_no_rank_if_another_left_no_record(ends: Timeline) -> None:
    """Rank 1 failed to connect, before its first process group. torchrun ended rank 0."""
    first, *others = analyze(ends).verdict
    assert (first.kind, first.ranks, first.confidence) == ("missing_rank", (1,), "unknown")
    assert "rank 0 ended by SIGTERM, as ranks do after another ended; rank 1 left no records" in first.evidence
    assert not {"killed_rank", "stopped_job", "missing_rank"} & {other.kind for other in others}


def waits_at_start(number: int) -> RankRecords:
    """A rank that waited in vain for its first process group."""
    records = rank(number, event("exception", 100 * MS, details=1), ending="DistStoreError")
    raised = {
        "type": "DistStoreError",
        "message": "wait timeout after 20000ms",
        "at": "train.py:7",
        "communication": True,
    }
    return replace(records, details={1: raised})


def test_a_rank_that_did_not_come_to_the_first_process_group_is_named() -> None:
    """Ranks 0 and 2 of 3 waited for it, and the launcher ended it then."""
    for notes in ((), (note(1, -15),)):
        first, *others = analyze(noted(waits_at_start(0), waits_at_start(2), notes=notes, world_size=3)).verdict
        assert (first.kind, first.ranks, first.confidence) == ("missing_rank", (1,), "medium")
        assert "rank 1 did not come to the first process group" in first.evidence
        assert "ranks 0, 2 waited for it: DistStoreError: wait timeout" in first.evidence
        assert "missing_rank" not in {other.kind for other in others}


def test_a_rank_that_was_killed_before_it_recorded_is_named() -> None:
    """The launcher saw its end."""
    notes = (note(1, -9, first=True), note(0, 1))
    first, *_ = analyze(noted(waits_at_start(0), waits_at_start(2), notes=notes, world_size=3)).verdict
    assert (first.kind, first.ranks) == ("killed_rank", (1,))


def test_a_rank_is_not_said_to_be_absent_if_none_is_missing_or_a_group_was_made() -> None:
    """All waited, e.g. at a wrong address; or a rank had a group, so that the store failed later."""
    everyone = analyze(noted(*map(waits_at_start, range(3)), notes=(), world_size=3)).verdict
    later = replace(waits_at_start(0), groups=ended(0, last_ns=150 * MS).groups)
    for verdict in (everyone, analyze(noted(later, notes=(), world_size=2)).verdict):
        assert not any("did not come" in each.evidence for each in verdict)


def test_restarts_that_take_much_of_the_run_are_a_finding_about_the_rank_that_ended_it() -> None:
    """10 s of work, 15 s until the next step, and 25 or 900 s of work. How many steps were lost is not known."""
    before = attempt(0, began_s=0, last_s=10, steps=9, endings={0: "RuntimeError", 1: "ValueError"})
    found = []
    for steps in (25, 900):
        rows = (step(number, (25 + number) * S, (26 + number) * S) for number in range(steps))
        last = replace(rank(0, *rows), attempt=1)
        verdict = analyze(build_timeline(replace(run(last), earlier=(before,)))).verdict
        found.append([each for each in verdict if each.kind == "restart"])
    ((finding,), none) = found
    assert none == []
    assert (finding.ranks, finding.confidence) == ((1,), "high")
    assert finding.estimated_gain_ratio == pytest.approx(15 / 50)
    assert finding.evidence == (
        "1 restart took 15.0 s from the last record before to the next step: 30.0 % of the run; attempt 0: rank 1 "
        "raised ValueError"
    )


KILLED_BY_ONE = (note(0, -9, first=True), note(1, -9))


@pytest.mark.parametrize(
    ("endings", "notes", "ranks"),
    [
        pytest.param({0: None, 1: None}, KILLED_BY_ONE, (), id="a scheduler killed all"),
        pytest.param({0: None, 1: None}, (note(0, -9, first=True), note(1, -9, at_s=31)), (0,), id="one was killed"),
        pytest.param({0: "Preempted", 1: "Preempted"}, (), (), id="handlers on all ranks raised"),
        pytest.param({0: "ValueError", 1: "SystemExit"}, (note(None, -15),), (), id="the launcher was stopped"),
        pytest.param({0: "KeyboardInterrupt", 1: None}, (), (), id="a person stopped it"),
        pytest.param({0: "DistBackendError", 1: None}, (), (), id="another rank was lost"),
        pytest.param({0: "RuntimeError", 1: None}, (), (), id="perhaps another rank was lost"),
        pytest.param(
            {0: "RuntimeError", 1: None}, (note(0, 1, first=True), note(1, -15)), (0,), id="ended by launcher"
        ),
        pytest.param({0: "ValueError", 1: None}, (), (0,), id="an error of its own"),
    ],
)
def test_a_restart_names_only_a_rank_that_failed_by_itself(
    endings: dict[int, str | None], notes: tuple[LauncherNote, ...], ranks: tuple[int, ...]
) -> None:
    before = attempt(0, began_s=0, last_s=10, steps=9, endings=endings)
    last = replace(rank(0, *(step(number, (25 + number) * S, (26 + number) * S) for number in range(25))), attempt=1)
    verdict = analyze(build_timeline(replace(run(last), earlier=(before,), launcher=notes))).verdict
    assert [each.ranks for each in verdict if each.kind == "restart"] == [ranks]


def test_of_several_restarts_the_last_one_is_named() -> None:
    """Rank 0 ended attempt 0; nobody knows who ended attempt 1."""
    first = attempt(0, began_s=0, last_s=10, steps=9, endings={0: "ValueError", 1: None})
    second = attempt(1, began_s=20, last_s=30, steps=9, endings={0: None, 1: None})
    last = replace(rank(0, *(step(number, (45 + number) * S, (46 + number) * S) for number in range(25))), attempt=2)
    verdict = analyze(build_timeline(replace(run(last), earlier=(first, second)))).verdict
    (finding,) = (each for each in verdict if each.kind == "restart")
    assert finding.ranks == ()
    assert "the last ended attempt 1: 2 ranks recorded no end" in finding.evidence
    assert "Without all of them" in finding.advice


def test_sigterm_is_no_reason_of_a_restart_if_a_rank_left_no_record() -> None:
    before = attempt(0, began_s=0, last_s=10, steps=9, endings={0: None})
    last = replace(rank(0, step(0, 25 * S, 26 * S)), attempt=1)
    notes, reasons = (note(0, -15, first=True),), []
    for unrecorded in ((), (1,)):
        known = replace(run(last), earlier=(replace(before, unrecorded=unrecorded),), launcher=notes)
        reasons.append(faults(build_timeline(known))[0].what)
    assert reasons == [
        "attempt 1: rank 0 was killed (signal 15)",
        "attempt 1: rank 0 got SIGTERM; rank 1 left no record",
    ]


@pytest.mark.parametrize("recorded", [{}, {"SIGHUP": HANGING}], ids=["no rank recorded it", "one rank recorded it"])
def test_a_closed_terminal_stops_the_job_also_where_ranks_died_before_they_could_record_it(
    recorded: dict[str, str],
) -> None:
    """torchrun raises an exception then: its own end is no signal, and its ranks' ends are."""
    ranks = ended(0, last_ns=150 * MS, signals=recorded), ended(1, last_ns=150 * MS)
    notes = note(0, -1, first=True), note(1, -1)
    job, *ends = faults(noted(*ranks, notes=notes))
    assert (job.kind, job.what) == (FaultKind.STOPPED, "every rank got SIGHUP")
    assert "its terminal was closed" in job.evidence
    assert all(end.follows for end in ends)
    job, *_ = faults(noted(*ranks, notes=(notes[0], note(1, 1))))
    assert job.kind != FaultKind.STOPPED
    failed = ended(1, last_ns=90 * MS, ending="ValueError", raised="model.py:41")
    assert faults(noted(ranks[0], failed, notes=notes))[0].kind != FaultKind.STOPPED


@pytest.mark.parametrize("recorded", [{}, {"SIGUSR1": HANGING}], ids=["no rank recorded it", "one rank recorded it"])
def test_a_schedulers_warning_that_no_rank_handles_stops_the_job(recorded: dict[str, str]) -> None:
    ranks = ended(0, last_ns=150 * MS), ended(1, last_ns=150 * MS, signals=recorded)
    job, *ends = faults(noted(*ranks, notes=(note(0, -10, first=True), note(1, -10))))
    assert (job.kind, job.what) == (FaultKind.STOPPED, "every rank got SIGUSR1")
    assert all(end.follows for end in ends)
    answered = ended(1, last_ns=150 * MS, signals={"SIGTERM": HANGING})
    first, *_ = faults(noted(ranks[0], answered, notes=(note(0, -10, first=True), note(1, -15))))
    assert (first.kind, first.ranks) == (FaultKind.KILLED, (0,))


def test_a_signal_to_the_launcher_stops_the_job() -> None:
    silent = [ended(number, last_ns=150 * MS) for number in (0, 1)]
    job, *_ = faults(noted(*silent, notes=(note(None, -15, first=True),)))
    assert (job.kind, job.what) == (FaultKind.STOPPED, "the launcher got SIGTERM")


def test_a_crash_has_its_name_and_place() -> None:
    crash = {"fatal": f"Fatal Python error: Segmentation fault\n\n{HANGING}"}
    (fault,) = faults(timeline(ended(0, last_ns=150 * MS, signals=crash)))
    assert (fault.kind, fault.what) == (FaultKind.SIGNAL, f"{CRASH}, called at train.py:9")


IN_A_KERNEL = """Fatal Python error: Segmentation fault

Current thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/a/kernels.py", line 9 in forward
  File "/home/a/train.py", line 12 in <module>
"""


def test_a_crash_has_the_line_of_the_training_that_called_native_code() -> None:
    crashed = timeline(ended(0, last_ns=150 * MS, signals={"fatal": IN_A_KERNEL}))
    (fault,) = faults(crashed)
    assert fault.what == "Segmentation fault (SIGSEGV) in string_at (__init__.py:519), called at kernels.py:9"
    assert analyze(crashed).verdict[0].advice.startswith("Look at kernels.py:9: native code there crashed.")


@pytest.mark.parametrize(
    ("row", "of_communication"),
    [
        pytest.param(phase(Phase.FORWARD, 110 * MS, OPEN, at=1), False, id="in forward"),
        pytest.param(collective(110 * MS, OPEN, name="all_reduce", at=1), True, id="in communication"),
    ],
)
@pytest.mark.parametrize("by_agent", [True, False], ids=["noted by the agent", "noted by the launcher"])
def test_an_abort_without_a_stack_is_the_ranks_own_outside_of_communication(
    row: Row, of_communication: bool, by_agent: bool
) -> None:
    """The step before has detail, and so has the open one: its collectives have records."""
    before = step(0, 0, 100 * MS, flags=Flag.DETAILED)
    aborted = rank(1, before, step(1, 100 * MS, OPEN), row, groups=[DP], ending=None)
    if by_agent:
        signals = {"fatal": "Fatal Python error: Aborted\n\nNo stack: the agent saw it.\n"}
        aborted = replace(aborted, info=replace(aborted.info, signals=signals))
    peer = ended(0, last_ns=150 * MS, ending="RuntimeError", raised="train.py:7")
    known = noted(peer, aborted, notes=(note(1, -6, first=True),))
    (end,) = [fault for fault in faults(known) if fault.ranks == (1,)]
    assert (end.kind, end.what) == (FaultKind.SIGNAL, "Aborted (SIGABRT)")
    assert end.of_communication == of_communication
    first = analyze(known).verdict[0]
    assert ((first.kind, first.ranks) == ("killed_rank", (1,))) is not of_communication


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ("Current thread 0x1 (most recent call first):", "every rank got SIGTERM"),
        (MAIN_ALONE, f"{CRASH}, called at train.py:9"),
    ],
)
def test_a_crash_in_the_reading_of_a_deadly_signals_stacks_is_that_signal(other: str, what: str) -> None:
    """After a signal that the training handles itself, it goes on, and a crash is one of its own."""
    head, _, frames = HANGING.partition("\n")
    assert head.startswith("Current thread")
    signals = {"SIGTERM": f"{other}\n{frames}", "fatal": f"Fatal Python error: Segmentation fault\n\n{HANGING}"}
    fault, *_ = faults(timeline(ended(0, last_ns=150 * MS, signals=signals)))
    assert fault.what == what


def test_a_stop_after_a_failure_is_not_the_cause() -> None:
    """Rank 1 raised at 150 ms, rank 0 hung in an all-reduce until a user pressed Ctrl-C ten minutes later."""
    hung = ended(0, last_ns=600 * S, ending="KeyboardInterrupt", raised="train.py:3")
    failed = ended(1, last_ns=150 * MS, ending="ValueError", raised="model.py:41")
    stop = (note(None, -2, first=True, at_s=600),)
    (first,) = [end for end in faults(noted(hung, failed, notes=stop)) if not end.follows]
    assert (first.kind, first.ranks) == (FaultKind.EXCEPTION, (1,))
    (job,) = [end for end in faults(noted(hung, notes=stop)) if not end.follows]
    assert (job.kind, job.what) == (FaultKind.STOPPED, "the launcher got SIGINT")


def test_the_trainings_own_events_are_not_faults_whatever_their_names() -> None:
    rows = [step(0, 0, 100 * MS)]
    rows += [replace(event(name, 10 * MS), flags=Flag.GIVEN) for name in ("gpu lost", "checkpoint failed", "exception")]
    stream = faults(timeline(rank(0, *rows)), marks=True)
    assert {(fault.kind, fault.what) for fault in stream} == {
        (FaultKind.EVENT, "gpu lost"),
        (FaultKind.EVENT, "checkpoint failed"),
        (FaultKind.EVENT, "exception"),
    }


def test_a_stop_of_an_earlier_attempt_does_not_stop_the_last() -> None:
    failed = ended(0, last_ns=150 * MS, ending="ValueError", raised="model.py:41")
    (first,) = faults(noted(failed, notes=(replace(note(None, -15, first=True), attempt=-1),)))
    assert (first.kind, first.ranks) == (FaultKind.EXCEPTION, (0,))


def test_the_place_is_of_the_interrupted_thread_or_the_oldest() -> None:
    assert str(interrupted_thread(HANGING)[0]) == "wait (threading.py:327)"
    assert str(interrupted_thread(TWO_THREADS)[0]) == "all_reduce (distributed_c10d.py:3112)"
    assert interrupted_thread("Fatal Python error: Aborted\n") == ()


def test_a_killed_rank_in_the_launchers_note_is_the_first() -> None:
    """Rank 0's records stop before: it waited for rank 1, then was ended by the launcher."""
    killed = noted(
        ended(0, last_ns=120 * MS), ended(1, last_ns=150 * MS), notes=(note(1, -9, first=True), note(0, -15))
    )
    first, second = faults(killed)
    assert (first.ranks, first.kind, first.what) == (
        (1,),
        FaultKind.KILLED,
        "was killed (signal 9), noted by the launcher",
    )
    assert (second.ranks, second.follows) == ((0,), True)
    verdict = analyze(killed).verdict[0]
    assert (verdict.kind, verdict.ranks, verdict.confidence) == ("killed_rank", (1,), "high")
    assert "it was killed (signal 9), noted by the launcher; it was in" in verdict.evidence


def test_exits_within_one_second_are_ordered_by_exception_time() -> None:
    first, _ = faults(
        noted(
            ended(0, last_ns=150 * MS, ending="RuntimeError", raised="ddp.py:7"),
            ended(1, last_ns=140 * MS, ending="ValueError", raised="model.py:41"),
            notes=(note(0, 1, first=True), note(1, 1)),
        )
    )
    assert (first.ranks, first.follows) == ((1,), False)


def raising(number: int, at_ms: int, *, error: str = "ValueError", place: str = "model.py:41") -> RankRecords:
    """A rank that raised `error`, whose message names the rank."""
    records = ended(number, last_ns=at_ms * MS, ending=error, raised=place)
    details = {"type": error, "at": place, "message": f"rank {number}", "traceback": [f"/x/{place} in check"]}
    return replace(records, details={1: details})


def test_the_same_exception_on_all_ranks_names_no_rank() -> None:
    """The launcher noticed rank 2 first, which was the last to raise."""
    notes = (note(2, 1, first=True), *(note(at, -15) for at in (0, 1, 3)))
    known = noted(*(raising(at, ms) for at, ms in enumerate((210, 230, 300, 150))), notes=notes)
    first, *others = analyze(known).verdict
    assert (first.kind, first.ranks, first.steps, first.confidence) == ("failed_rank", (), (1,), "high")
    assert first.evidence == (
        "all 4 ranks raised the same exception within 150 ms; on rank 3: ValueError: rank 3 at model.py:41"
    )
    assert not {"failed_rank", "killed_rank"} & {other.kind for other in others}
    assert [(fault.ranks, fault.follows) for fault in faults(known)] == [((at,), False) for at in (3, 0, 1, 2)]


def test_the_rank_whose_failure_torch_raised_on_all_ranks_is_named() -> None:
    """Of a part of the job, ranks may be counted within their group."""
    failed = {"rank": 1, "type": "OSError", "at": "filesystem.py:520", "message": "[Errno 28] No space left on device"}

    def failing(number: int) -> RankRecords:
        records = raising(number, 150 + number, error="CheckpointException")
        return replace(records, details={1: {**records.details[1], "failures": [failed], "num_failed": 1}})

    first = analyze(timeline(*map(failing, range(3)))).verdict[0]
    assert (first.kind, first.ranks, first.confidence) == ("failed_rank", (1,), "high")
    assert first.evidence == (
        "rank 1 raised OSError: [Errno 28] No space left on device at filesystem.py:520; so torch raised "
        "CheckpointException on all 3 ranks at model.py:41"
    )
    assert first.advice.startswith("Mend the OSError of rank 1:")
    others = ended(2, last_ns=170 * MS, ending="clean")
    assert analyze(timeline(failing(0), failing(1), others)).verdict[0].ranks != (1,)


@pytest.mark.parametrize(
    ("num_failed", "evidence"),
    [
        (5, "5 ranks failed: rank 0 raised OSError at a.py:1; rank 1 "),
        (6, "6 ranks failed: rank 0 raised OSError at a.py:1; so torch "),
    ],
)
def test_many_ranks_that_failed_are_counted_and_none_is_the_cause(num_failed: int, evidence: str) -> None:
    """Four of them are recorded. If more than half of ten failed, one stands for all: they share a cause."""
    failures = [{"rank": number, "type": "OSError", "at": "a.py:1"} for number in range(4)]
    ranks = []
    for number in range(10):
        records = raising(number, 150, error="CheckpointException")
        reported = {**records.details[1], "failures": failures, "num_failed": num_failed}
        ranks.append(replace(records, details={1: reported}))
    first = analyze(timeline(*ranks)).verdict[0]
    assert (first.kind, first.ranks) == ("failed_rank", ())
    assert first.evidence.startswith(evidence)
    assert first.advice.startswith("Mend the OSError of these ranks:")


def test_ranks_that_were_ended_before_they_raised_it_change_nothing() -> None:
    ranks = [raising(0, 150), raising(1, 160), ended(2, last_ns=170 * MS, signals={"SIGTERM": HANGING})]
    assert analyze(timeline(*ranks)).verdict[0].ranks == ()
    few = [*ranks, *(ended(at, last_ns=170 * MS, signals={"SIGTERM": HANGING}) for at in (3, 4))]
    first = analyze(timeline(*few)).verdict[0]
    assert (first.ranks, first.evidence.partition(" raised")[0]) == ((0, 1), "ranks 0, 1")


@pytest.mark.parametrize(
    "earlier",
    [
        raising(2, 150, error="KeyError"),
        raising(2, 150, place="data.py:7"),
        replace(raising(2, 150), details={1: {"type": "ValueError", "at": "model.py:41"}}),
    ],
    ids=["another error", "another line", "no traceback"],
)
def test_another_error_before_the_common_one_is_the_first(earlier: RankRecords) -> None:
    known = timeline(raising(0, 400), raising(1, 420), earlier)
    first = analyze(known).verdict[0]
    assert (first.ranks, [fault.follows for fault in faults(known)]) == ((2,), [False, True, True])


def test_the_same_exception_long_after_the_first_follows_it() -> None:
    known = timeline(raising(0, 150), raising(1, 1_151))
    assert analyze(known).verdict[0].ranks == (0,)


def test_an_unrecorded_end_is_described_by_its_exit_code() -> None:
    (records,) = faults(noted(ended(0, last_ns=150 * MS), notes=(note(0, 3, first=True),)))
    assert (records.kind, records.what) == (FaultKind.EXIT, "exited with code 3, noted by the launcher")
    healthy = rank(0, step(0, 0, 100))
    (unseen,) = faults(noted(healthy, notes=(note(1, -11, first=True),), world_size=2))
    assert (unseen.ranks, unseen.at_ns, unseen.evidence) == ((1,), S, "it left no record")
    verdict = analyze(noted(healthy, notes=(note(1, -11, first=True),), world_size=2)).verdict
    assert [finding.kind for finding in verdict if finding.ranks == (1,)] == ["killed_rank"]
    (late,) = faults(noted(healthy, notes=(note(0, -6, first=True),)))
    assert late.what == "ended its run cleanly, then was killed (signal 6), noted by the launcher"


def test_the_launcher_notes_exit_codes_after_a_clean_run() -> None:
    """A `sys.exit(3)` after a caught error: the run ended cleanly, together with its process."""
    healthy = rank(0, step(0, 0, 100))
    with_process = replace(healthy, info=replace(healthy.info, with_process=True))
    (records,) = faults(noted(with_process, notes=(note(0, 3, first=True),)))
    assert (records.kind, records.what) == (FaultKind.EXIT, "exited with code 3, noted by the launcher")
    assert faults(noted(with_process, notes=(note(0, -15),))) == []


def test_a_sys_exit_has_its_code_and_the_handled_exception() -> None:
    records = ended(0, last_ns=150 * MS, ending="SystemExit", raised="train.py:9")
    code = {"type": "SystemExit", "at": "train.py:9", "code": 3}
    handled = {"handling": "ValueError", "handling_at": "model.py:7", "handling_message": "bad"}
    (plain,) = faults(timeline(replace(records, details={1: code})))
    assert (plain.kind, plain.what) == (FaultKind.EXIT, "exited with code 3 at train.py:9")
    (caught,) = faults(timeline(replace(records, details={1: code | handled})))
    assert caught.what == "exited with code 3 at train.py:9, while handling ValueError: bad at model.py:7"
    (memory,) = faults(timeline(replace(records, details={1: code | handled | {"handling": "OutOfMemoryError"}})))
    assert memory.kind == FaultKind.OUT_OF_MEMORY
    verdict = analyze(timeline(replace(records, details={1: code}))).verdict[0]
    assert (verdict.kind, verdict.ranks) == ("failed_rank", (0,))
    assert verdict.evidence.startswith("rank 0 ended: it exited with code 3 at train.py:9; it was in")


def test_a_rank_that_exited_is_the_first_if_the_launcher_ended_all_others() -> None:
    """Rank 0's records stop before: it waited."""
    first, second = faults(
        noted(ended(0, last_ns=120 * MS), ended(1, last_ns=150 * MS), notes=(note(1, 5, first=True), note(0, -15)))
    )
    assert (first.ranks, first.what) == ((1,), "exited with code 5, noted by the launcher")
    assert (second.ranks, second.follows) == ((0,), True)


def process_of(records: RankRecords, *, running: bool) -> RankRecords:
    return replace(records, running=running)


@pytest.mark.parametrize("process_gone", [False, True])
def test_a_rank_without_record_or_note_may_have_ended_first(process_gone: bool) -> None:
    """An `os._exit(0)` that caused its peer's error, or a hang that outlived it: only the processes differ."""
    records = ended(1, last_ns=120 * MS)
    known = noted(
        ended(0, last_ns=180 * MS, ending="RuntimeError", raised="ddp.py:7"),
        process_of(records, running=False) if process_gone else records,
        notes=(note(0, 1, first=True),),
    )
    silent, raised = faults(known)
    assert (silent.ranks, silent.kind) == ((1,), FaultKind.KILLED if process_gone else FaultKind.NO_END)
    assert (raised.ranks, raised.kind) == ((0,), FaultKind.EXCEPTION)
    assert {fault.confidence for fault in (silent, raised)} == {"unknown"}
    assert [fault.follows for fault in (silent, raised)] == [False, False]
    assert analyze(known).verdict[0].confidence == "unknown"


def test_a_rank_heard_of_after_the_first_known_end_did_not_end_first() -> None:
    known = timeline(ended(0, last_ns=120 * MS, ending="ValueError", raised="model.py:41"), ended(1, last_ns=180 * MS))
    finding = analyze(known).verdict[0]
    assert (finding.kind, finding.ranks, finding.confidence) == ("failed_rank", (0,), "high")


def test_a_rank_whose_process_runs_did_not_end_first() -> None:
    """The living rank's last record is the older one: it waits for the rank that raised."""
    known = timeline(
        process_of(ended(0, last_ns=120 * MS), running=True),
        ended(1, last_ns=180 * MS, ending="ValueError", raised="model.py:41"),
    )
    waits, raised = faults(known)
    assert (waits.kind, waits.evidence) == (FaultKind.NO_END, "its process ran when this was read")
    assert (raised.ranks, raised.follows, raised.confidence) == ((1,), False, "medium")
    assert analyze(known).verdict[0].evidence.startswith("rank 1 ended first: it raised ValueError at model.py:41")


def test_a_signal_from_outside_is_not_evidence_of_another_ranks_end() -> None:
    """torchrun sends SIGTERM after a rank has ended; a user who stops one rank sends it too."""
    known = timeline(ended(0, last_ns=150 * MS, signals={"SIGTERM": HANGING}), ended(1, last_ns=120 * MS))
    finding = analyze(known).verdict[0]
    assert (finding.kind, finding.ranks, finding.confidence) == ("no_end_recorded", (1,), "unknown")
    assert finding.evidence == (
        "rank 0 got SIGTERM in wait (threading.py:327), as ranks get after another ended; the record does not show "
        "whether rank 1 ended; rank 1 was last heard of 0.120 s after the run's first record, in the wait for "
        "all_reduce on dp"
    )


def test_a_missing_process_is_evidence_of_an_end() -> None:
    """The others got SIGTERM; the rank that had already ended did not."""
    process_gone = process_of(ended(1, last_ns=120 * MS), running=False)
    known = timeline(ended(0, last_ns=150 * MS, signals={"SIGTERM": HANGING}), process_gone)
    first, second = faults(known)
    assert (first.kind, first.ranks, first.what) == (FaultKind.KILLED, (1,), "ended without a record of its end")
    assert first.evidence == "its process no longer exists"
    assert (second.ranks, second.follows) == ((0,), True)
    finding = analyze(known).verdict[0]
    assert (finding.kind, finding.ranks, finding.confidence) == ("killed_rank", (1,), "medium")


def test_ranks_that_ended_without_records_have_no_first() -> None:
    """Both ranks may have hung for an hour, and been killed in any order."""
    ranks = (process_of(ended(number, last_ns=(100 + 50 * number) * MS), running=False) for number in (0, 1))
    known = timeline(*ranks)
    assert [(fault.kind, fault.follows, fault.confidence) for fault in faults(known)] == [
        (FaultKind.KILLED, False, "unknown")
    ] * 2
    finding = analyze(known).verdict[0]
    assert (finding.kind, finding.ranks, finding.confidence) == ("killed_rank", (0, 1), "unknown")


def test_the_end_of_a_launcher_is_not_evidence_of_a_ranks_end() -> None:
    silent = ended(0, last_ns=150 * MS)
    (unknown,) = faults(noted(silent, notes=(note(None, 7),)))
    assert (unknown.kind, unknown.is_fault, unknown.confidence) == (FaultKind.NO_END, False, "unknown")
    assert unknown.evidence == "the command that launched it exited with code 7"
    (process_gone,) = faults(noted(process_of(silent, running=False), notes=(note(None, 7),)))
    assert (process_gone.kind, process_gone.what) == (FaultKind.KILLED, "ended without a record of its end")
    assert process_gone.evidence == "its process no longer exists; the command that launched it exited with code 7"


def test_a_stopped_launcher_is_not_evidence_of_a_ranks_end() -> None:
    job, *ranks = faults(
        noted(ended(0, last_ns=120 * MS), ended(1, last_ns=150 * MS), notes=(note(None, -15, first=True),))
    )
    assert job.kind == FaultKind.STOPPED
    assert [fault.kind for fault in ranks] == [FaultKind.NO_END, FaultKind.NO_END]


@pytest.mark.parametrize("running", [None, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_waiting_rank_is_not_called_dead(ranks: int, running: bool | None) -> None:
    """Rank 1 waits in an all-reduce since ten seconds before the others' last records."""
    lasts = {number: (1 if number == 1 else 11) * S for number in range(ranks)}
    waiting = timeline(*(replace(ended(number, last_ns=at), running=running) for number, at in lasts.items()))
    analysis = analyze(waiting)
    assert {(fault.kind, fault.is_fault, fault.confidence) for fault in analysis.faults} == {
        (FaultKind.NO_END, False, "unknown")
    }
    finding = analysis.verdict[0]
    if running:
        assert (finding.kind, finding.ranks) == ("running", ())
    else:
        assert (finding.kind, finding.confidence) == ("no_end_recorded", "unknown")
        assert finding.ranks == tuple(range(ranks))
        assert "rank 1 was last heard of 1.000 s after the run's first record, in the wait for all_reduce on dp" in (
            finding.evidence
        )
    assert not any(word in finding.evidence + finding.advice for word in ("first:", "killed", "SIGKILL", "memory"))


def test_without_a_known_end_no_rank_is_called_dead() -> None:
    """The job may be running, or every rank may hang."""
    silent = timeline(ended(0, last_ns=150 * MS), ended(1, last_ns=151 * MS))
    assert [fault.kind for fault in faults(silent)] == [FaultKind.NO_END, FaultKind.NO_END]
    assert [fault.is_fault for fault in faults(silent)] == [False, False]
    alone = timeline(ended(0, last_ns=150 * MS))
    assert (faults(alone)[0].kind, analyze(alone).verdict[0].kind) == (FaultKind.NO_END, "no_end_recorded")


@pytest.mark.parametrize(("held", "suspected"), [(700, False), (850, True)])
def test_a_kill_with_full_memory_suggests_the_out_of_memory_killer(held: int, suspected: bool) -> None:
    """The host has 1,000 bytes; the rank held `held` of them at its last sample."""
    sample = Row(kind=Kind.MEMORY, start_ns=140 * MS, end_ns=140 * MS, name="resident", value=held)
    killed = rank(0, step(0, 0, 100 * MS), sample, ending=None)
    killed = replace(killed, info=replace(killed.info, device={"memory_bytes": 1_000}))
    (fault,) = faults(noted(killed, notes=(note(0, -9, first=True),)))
    assert fault.kind == FaultKind.KILLED
    assert ("out-of-memory killer" in fault.evidence) is suspected


def test_the_first_value_that_is_not_finite_is_one_fault_of_its_ranks() -> None:
    nan, inf = float("nan"), float("inf")
    (fault,) = faults(
        timeline(
            rank(0, step(0, 0, S), *logged("loss", [2.5, 2.4, inf, nan, 1.0])),
            rank(1, step(0, 0, S), *logged("loss", [2.5, 2.4, inf, nan, 1.0])),
            rank(2, step(0, 0, S), *logged("loss", [2.5, 2.4, 2.3, nan, 1.0])),
        )
    )
    assert (fault.kind, fault.ranks, fault.step, fault.at_ns) == (FaultKind.NOT_FINITE, (0, 1), 2, 20 * MS)
    assert fault.what == "loss is inf"
    assert fault.evidence == "it was 2.4 before; 1 of the 2 later values are not finite"


def test_a_run_whose_loss_is_nan_is_not_called_healthy() -> None:
    rows = (step(0, 0, 100), phase(Phase.FORWARD, 0, 100), *logged("loss", [float("nan")]))
    (finding,) = analyze(timeline(rank(0, *rows))).verdict
    assert finding.kind == "faults"
    assert finding.evidence.endswith("but there are faults: loss is NaN")


def test_a_spike_is_one_fault_with_the_median_before_it() -> None:
    """40 values of 2.0 and 2.2 in turn: median 2.1, spread 1.4826 x 0.1, so that 2.1 + 1.5 is the limit."""
    quiet = [2.0, 2.2] * 20
    (fault,) = faults(timeline(*(rank(n, step(0, 0, S), *logged("loss", [*quiet, 3.7, 3.65, 2.0])) for n in (0, 1))))
    assert (fault.kind, fault.ranks, fault.step, fault.what) == (FaultKind.SPIKE, (0, 1), 40, "loss jumps to 3.7")
    assert fault.evidence == "the median of the 40 values before is 2.1"
    assert faults(timeline(rank(0, step(0, 0, S), *logged("loss", [*quiet, 3.5, 2.0])))) == []


@pytest.mark.parametrize("name", ["reward", "rewards/lengths/mean", "eval_accuracy", "win_rate", "pass/score"])
def test_a_value_that_the_training_wants_to_rise_has_no_spikes(name: str) -> None:
    assert not faults(timeline(rank(0, step(0, 0, S), *logged(name, [*[2.0, 2.2] * 20, 3.7]))))
    assert faults(timeline(rank(0, step(0, 0, S), *logged("reward_loss", [*[2.0, 2.2] * 20, 3.7]))))


def test_noise_drift_and_schedules_are_not_spikes() -> None:
    """The rates that `spikes` documents: 0 in 50,000 normal values, 0 in a ramp and in stairs."""
    noise = np.random.default_rng(7).standard_normal(50_000)
    assert len(spikes(noise + 20)) == 0
    assert len(spikes(np.linspace(0.0, 1e-3, 500))) == 0
    assert len(spikes(np.repeat([1.0, 2.0, 8.0], 100))) == 0
    assert len(spikes(np.array([1.0, 100.0]))) == 0
    assert spikes(np.where(np.arange(50_000) == 31_000, 40.0, noise + 20)).tolist() == [31_000]


def slow_run(*, term: Phase, rank_of_it: int) -> Timeline:
    """Two ranks in lockstep, 20 steps of 100 ms but for step 12 of 300: `term` of one rank is 200 longer."""
    ranks = []
    for number in (0, 1):
        rows, at = [], 0
        for index in range(20):
            extra_ms = 200 if index == 12 else 0
            own_ms = extra_ms if number == rank_of_it else 0
            middle, end = (at + 60) * MS, (at + 100 + extra_ms) * MS
            rows += [step(index, at * MS, end), phase(Phase.FORWARD, at * MS, middle, at=index)]
            rows += [phase(term, middle, middle + (20 + own_ms) * MS, at=index)]
            reduce = collective(middle + (20 + own_ms) * MS, end, at=index, sequence=index, name="all_reduce")
            rows += [reduce, stall(reduce, reduce.start_ns, end)]
            at += 100 + extra_ms
        ranks.append(rank(number, *rows, groups=[DP]))
    return timeline(*ranks)


def test_a_slow_step_names_the_work_that_grew_not_the_wait() -> None:
    (fault,) = faults(slow_run(term=Phase.DATA_WAIT, rank_of_it=1))
    assert (fault.kind, fault.ranks, fault.step, fault.lasted_ns) == (FaultKind.SLOW_STEP, (1,), 12, 300 * MS)
    assert fault.what == "took 3.0 times the median"
    assert (
        fault.evidence
        == "300.0 ms on its slowest rank, the median there is 100.0 ms; data_wait of rank 1 grew from 20.0 to 220.0 ms"
    )


def test_the_recorders_own_time_makes_no_step_slow() -> None:
    """Step 12 takes 300 ms, of which the recorder counts FLOPs for 200."""
    lengths_ms = [300 if number == 12 else 100 for number in range(20)]
    ends = np.cumsum(lengths_ms).tolist()
    steps = [
        step(number, (end - length) * MS, end * MS)
        for number, (end, length) in enumerate(zip(ends, lengths_ms, strict=True))
    ]
    assert [fault.kind for fault in faults(timeline(rank(0, *steps)))] == [FaultKind.SLOW_STEP]
    steps[12] = replace(steps[12], value=200 * MS)
    assert faults(timeline(rank(0, *steps))) == []


def test_steps_that_a_requested_kernel_trace_lengthens_are_not_slow() -> None:
    """Steps 17 to 18 are traced; the trace of step 18 is written in step 19. Step 21 is slow by itself."""
    lengths_ms = [300 if number in (17, 18, 19, 21) else 100 for number in range(40)]
    ends = np.cumsum(lengths_ms).tolist()
    steps = [
        step(number, (end - length) * MS, end * MS)
        for number, (end, length) in enumerate(zip(ends, lengths_ms, strict=True))
    ]
    request = WindowRequest(
        attempt=0, first_step=16, num_steps=2, kernels=True, cause=Cause.PROFILE, at_step=None, at_wall_ns=0
    )
    recorded = timeline(rank(0, *steps))
    traced = replace(recorded, run=replace(recorded.run, requests=(request,)))
    assert [fault.step for fault in faults(recorded)] == [17, 18, 19, 21]
    assert [fault.step for fault in faults(traced)] == [21]


def test_steps_of_nothing_but_the_recorders_own_time_are_not_judged() -> None:
    """The measured time of very short steps may even exceed them."""
    steps = [replace(step(number, number * MS, (number + 1) * MS), value=2 * MS) for number in range(20)]
    steps[12] = replace(steps[12], value=0)
    assert faults(timeline(rank(0, *steps))) == []


def test_a_step_that_a_checkpoint_made_long_is_a_mark_only() -> None:
    stream = faults(slow_run(term=Phase.CHECKPOINT_STALL, rank_of_it=0), marks=True)
    assert {fault.kind for fault in stream} == {FaultKind.CHECKPOINT}


def test_a_skipped_step_is_one_fault_of_all_its_ranks() -> None:
    rows = (step(0, 0, 100), step(1, 100, 200, flags=Flag.SKIPPED))
    (fault,) = faults(timeline(rank(0, *rows), rank(1, *rows)))
    assert (fault.kind, fault.ranks, fault.step, fault.at_ns) == (FaultKind.SKIPPED_STEP, (0, 1), 1, 100)


def test_checkpoints_evaluations_and_events_are_marks_in_the_order_of_time() -> None:
    def save(start: int, end: int) -> Row:
        return replace(phase(Phase.CHECKPOINT_STALL, start, end, at=1), name="save checkpoint")

    first = rank(
        0,
        step(0, 0, 100),
        phase(Phase.EVALUATION, 50, 60, at=0),
        phase(Phase.EVALUATION, 65, 70, at=0),
        step(1, 100, 200),
        save(110, 150),
        event("batch size", 180, details=1, at=1),
        event("checkpoint failed", 190, details=2, at=1),
    )
    first = replace(first, details={1: {"to": 64}, 2: {"type": "OSError"}})
    stream = faults(timeline(first, rank(1, step(0, 0, 100), step(1, 100, 200), save(120, 170))), marks=True)
    assert [(fault.kind, fault.at_ns, fault.lasted_ns, fault.ranks, fault.what) for fault in stream] == [
        (FaultKind.EVALUATION, 50, 20, (0,), "evaluation"),
        (FaultKind.CHECKPOINT, 110, 50, (0, 1), "save checkpoint"),
        (FaultKind.EVENT, 180, None, (0,), "batch size: to 64"),
        (FaultKind.CHECKPOINT_FAILED, 190, None, (0,), "checkpoint failed: type OSError"),
    ]
    assert [fault.is_fault for fault in stream] == [False, False, False, True]


def test_a_mark_of_several_ranks_lasts_as_long_as_on_the_longest_of_them() -> None:
    """Rank 0 saves twice, for 28 in all. Rank 1 saves for 5, long after. They stop nothing for the 345 between."""

    def save(start: int, end: int) -> Row:
        return replace(phase(Phase.CHECKPOINT_STALL, start, end, at=0), name="save checkpoint")

    def evaluate(start: int, end: int) -> Row:
        return phase(Phase.EVALUATION, start, end, at=0)

    stream = faults(
        timeline(
            rank(0, step(0, 0, 900), save(100, 120), save(130, 138), evaluate(500, 510), evaluate(550, 560)),
            rank(1, step(0, 0, 900), save(440, 445), evaluate(700, 720)),
        ),
        marks=True,
    )
    assert [(fault.kind, fault.at_ns, fault.lasted_ns, fault.until_ns) for fault in stream] == [
        (FaultKind.CHECKPOINT, 100, 28, 445),
        (FaultKind.EVALUATION, 500, 60, 720),
    ]


def test_at_most_64_events_of_one_name_are_shown_but_all_saved_checkpoints() -> None:
    """The age of the last checkpoint is computed from these events."""
    events = [event(name, 10 * at, at=at) for at in range(70) for name in ("batch size", "checkpoint saved")]
    stream = faults(timeline(rank(0, step(0, 0, 1_000), *events)), marks=True)
    last = {name: [mark for mark in stream if mark.what == name][-1] for name in ("batch size", "checkpoint saved")}
    assert {name: (mark.at_ns, mark.evidence) for name, mark in last.items()} == {
        "batch size": (630, "events of this name after the 64th are left out"),
        "checkpoint saved": (690, ""),
    }


def test_an_unfinished_checkpoint_has_no_recorded_end() -> None:
    rows = (step(0, 0, 100), step(1, 100, OPEN), phase(Phase.CHECKPOINT_STALL, 110, OPEN, at=1))
    (mark,) = (fault for fault in faults(timeline(rank(0, *rows, ending="OSError")), marks=True) if fault.is_mark)
    assert (mark.kind, mark.evidence) == (FaultKind.CHECKPOINT, "its end is not recorded")


def test_a_lowered_level_of_the_recorder_is_a_mark() -> None:
    lowered = replace(
        rank(0, step(0, 0, 100), event("recorder level", 50, details=1)),
        details={1: {"level": 0, "was": 1, "why": "too expensive"}},
    )
    (mark,) = faults(timeline(lowered), marks=True)
    assert (mark.kind, mark.what) == (FaultKind.RECORDER_LEVEL, "recorder level 1 -> 0: too expensive")


def attempt(number: int, *, began_s: int, last_s: int, steps: int, endings: dict[int, str | None]) -> Attempt:
    """An attempt with steps of one second and no startup."""
    return Attempt(
        number=number,
        began_ns=began_s * S,
        first_step_ns=began_s * S,
        last_ns=last_s * S,
        num_steps=steps,
        steps_ns=steps * S,
        kept_steps=None,
        kept_ns=0,
        loaded=False,
        checkpoint_stall_ns=0,
        evaluation_ns=0,
        endings=endings,
        ended_ns={number: last_s * S - number for number in endings},
    )


def test_a_restart_has_its_duration_and_the_cause() -> None:
    """Attempt 0 ends at 10 s, attempt 1 steps at 25 s. Two ranks raised; rank 1 earlier."""
    before = attempt(0, began_s=0, last_s=10, steps=9, endings={0: "RuntimeError", 1: "ValueError"})
    last = replace(rank(0, step(0, 25 * S, 26 * S)), attempt=1)
    restarted = build_timeline(replace(run(last), earlier=(before,)))
    (fault,) = faults(restarted)
    assert (fault.kind, fault.at_ns, fault.lasted_ns) == (FaultKind.RESTART, 25 * S, 15 * S)
    assert fault.what == "attempt 1: rank 1 raised ValueError"
    assert fault.evidence == "15.0 s from the last record before to the first step; attempt 0 had made 9 steps"
    noted = LauncherNote(attempt=0, rank=1, exit_code=1, first=True, at_wall_ns=9 * S, noticed_wall_ns=9_400_000_000)
    seen = replace(before, rank_last_ns={0: 10 * S, 1: 9 * S})
    (fault,) = faults(build_timeline(replace(run(last), earlier=(seen,), launcher=(noted,))))
    assert fault.evidence.startswith("the launcher noticed it 0.4 s after the last record of rank 1; 15.0 s from the ")


def test_an_attempt_that_left_no_record_is_not_mistaken_for_the_one_before() -> None:
    before = attempt(0, began_s=0, last_s=10, steps=9, endings={0: "ValueError"})
    last = replace(rank(0, step(0, 25 * S, 26 * S)), attempt=2)
    (fault,) = faults(build_timeline(replace(run(last), earlier=(before,))))
    assert fault.what == "attempt 2: rank 0 raised ValueError"
    assert fault.evidence.startswith("that was the end of attempt 0; attempt 1 left no record; ")


def test_an_exit_that_only_the_launcher_noted_causes_a_restart() -> None:
    before = replace(attempt(0, began_s=0, last_s=10, steps=9, endings={0: "clean"}), noted=True)
    last = replace(rank(0, step(0, 25 * S, 26 * S)), attempt=1)
    restarted = replace(run(last), earlier=(before,), launcher=(note(0, 3, first=True),))
    (fault,) = faults(build_timeline(restarted))
    assert (fault.kind, fault.what) == (FaultKind.RESTART, "attempt 1: rank 0 exited with code 3")


def test_a_second_run_after_a_clean_end_is_not_a_restart() -> None:
    before = attempt(0, began_s=0, last_s=10, steps=9, endings={0: "clean"})
    last = replace(rank(0, step(0, 25 * S, 26 * S)), attempt=1)
    assert faults(build_timeline(replace(run(last), earlier=(before,)))) == []
