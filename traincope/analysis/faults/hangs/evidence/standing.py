"""Last state of each rank: the calls in which it waited, its line, and until when they are known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.faults.exceptions import Raised, exception_of
from traincope.analysis.faults.hangs.evidence.calls import Call, RankCalls
from traincope.analysis.faults.hangs.evidence.patience import open_phase
from traincope.analysis.faults.stacks import (
    Frame,
    Place,
    call_site,
    holds_lock,
    other_threads,
    place_of,
    shows_all_threads,
    training_thread,
)
from traincope.events import CLEAN, NO_STEP, OPEN, Flag, Phase
from traincope.store import Look, RankRecords
from traincope.store.job.communication_errors import is_timeout
from traincope.store.segments.segments import own_work
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.clocks.clocks import RankClock
from traincope.timeline.evidence import FROM_ALL_TO_ALL, waits_on_the_host
from traincope.units import duration

DOING = {
    Phase.FORWARD: "in forward",
    Phase.BACKWARD: "in backward",
    Phase.RECOMPUTE: "in recompute",
    Phase.OPTIMIZER: "in the optimizer",
    Phase.DATA_WAIT: "waiting for the next batch",
    Phase.JOB_WAIT: "waiting for another job",
    Phase.OBJECTS: "in a collective of Python objects",
    Phase.SYNC: "waiting for the device",
    Phase.CHECKPOINT_STALL: "in a checkpoint",
    Phase.EVALUATION: "in an evaluation",
    Phase.COMPILE: "in a compilation",
    Phase.GC: "in garbage collection",
}

STOPPED = {"T": "stopped by a signal (SIGSTOP)", "D": "in an uninterruptible wait of the kernel"}
"""State letter of a process that no longer runs its program -> what it does."""
STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device or file", "T": "is stopped", "t": "is traced"}
"""State letter of a process -> the words for it."""
SLEEPS = frozenset({"hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "do_wait", "kernel_wait4"})
"""Functions of the kernel in which a thread waits for time or for a child process."""
STARTUP = "/traincope/startup/"
"""Part of the path of what `traincope run` adds to a program, for example at its end."""
LOCKED = "its threads wait for locks that none of them releases"
TRACED = "t"
"""State letter of a process that a debugger stopped."""

WAITS, FLIGHTS, ON = "waits", "flight_recorder", "on"
"""The probe whose frame is in every wait, the one that writes torch's flight recorder when asked, and their state."""
ANSWER_NS = 5_000_000_000
"""A process that runs writes its flight recorder within this, also on a busy host."""
UNSEEN_WAITS = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
"""Phases in which DDP waits inside C++, which leaves no record until the wait is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The last known state of one rank."""

    rank: int
    calls: RankCalls
    waits: tuple[Call, ...]
    """Calls that it waited for, or may have waited for."""
    certain: bool
    """The records show that it waited for these calls. Those of a copy may be too old, without a later look."""
    frames: tuple[Frame, ...]
    place: Place | None
    phase: Phase | None
    """Innermost open phase."""
    progress_ns: int
    """The last instant at which the training thread began or ended something."""
    until_ns: int | None
    """Latest instant at which the process certainly existed; None without evidence."""
    state: str
    """State letter of its process (`store.Look`); empty without a look at it."""
    seen: tuple[str, ...]
    """Phrases for its process at the last look, if its stack is not known."""
    no_stack: str
    """Why its stack is not known although it was asked for; otherwise empty."""
    noticed_ns: int | None
    """First look of the node's agent after its last progress."""
    failed_at: str | None
    """The training's line at which its communication failed in the end; None without a recorded failure."""
    timed_out: bool
    """It failed because its time was over."""
    sees_waits: bool
    """The recorder is on the stack of every wait, also in steps without detail."""
    sleeps_alone: bool
    """Kernel or stacks show that it waits for no other rank, without the recorder's help."""
    exited: bool
    """Its run ended cleanly together with its process."""
    locked: bool
    """All threads of its process waited for locks, by the last look at it."""
    holds_lock: bool
    """Its C code holds Python's lock: its stacks say so, or it wrote them and no flight recorder. torch waits without
    the lock.
    """

    @property
    def step(self) -> int | None:
        return self.calls.rank.open_step

    @property
    def is_copy_without_look(self) -> bool:
        """True if a copy alone shows it: its records may be older than the stop."""
        return self.until_ns is None and self.calls.rank.since_ns is not None

    @property
    def left(self) -> bool:
        return self.calls.rank.ending == CLEAN

    @property
    def stopped(self) -> bool:
        """True if a signal stopped its process."""
        return self.state == "T"

    @property
    def cannot_go_on(self) -> str | None:
        """Evidence that it does not go on by itself; None without."""
        if self.stopped:
            return "its process is stopped"
        if self.exited:
            return "its process has ended"
        return LOCKED if self.locked else None

    @property
    def is_outside(self) -> bool:
        """True if it certainly did not wait for another rank. Without the recorder's frame in every wait, a line of the
        training may be a wait itself, e.g. `work.wait()`.
        """
        certain = self.sees_waits or self.sleeps_alone or self.holds_lock
        return self.stopped or (self.place is Place.OUTSIDE and certain)

    @property
    def is_decided(self) -> bool:
        """True if it is known whether it waited for another rank, or may have."""
        return self.sees_waits or self.is_outside or self.place in (Place.COMMUNICATION, Place.BACKWARD)

    @property
    def is_debugged(self) -> bool:
        """True if a person stopped it, who may take any time."""
        return self.state == TRACED or any(frame.is_debugger for frame in self.frames)

    @property
    def tears_down(self) -> bool:
        """True if it stood in the end of its process groups."""
        return any(frame.is_teardown for frame in self.frames)

    @property
    def may_wait(self) -> bool:
        """True if it stood where it waits for a collective, or its time for one was over, and its process runs."""
        stood = self.place in (Place.COMMUNICATION, Place.BACKWARD) or (self.place is None and self.timed_out)
        return self.state not in STOPPED and stood

    @property
    def site(self) -> str | None:
        return call_site(self.frames)

    @property
    def waited_at(self) -> str | None:
        """The training's line at which it waited: where it stood, or where its communication failed in the end."""
        return self.site or self.failed_at

    @property
    def doing(self) -> str | None:
        if self.left:
            return "had ended its run"
        if self.state in STOPPED:
            return STOPPED[self.state]
        if self.frames:
            return "ending its process" if _is_over(self.frames) else f"in {self.frames[0]}"
        return None if self.phase is None else DOING.get(self.phase)


def standing(timeline: Timeline, calls: Mapping[int, RankCalls]) -> dict[int, Standing]:
    """Return where each rank stood."""
    records = {rank.rank: rank for rank in timeline.run.ranks}
    looks = {rank.rank: rank.looks for rank in timeline.run.ranks}
    clocks = {clock.rank: clock for clock in timeline.clocks}
    probes = {rank.rank: rank.info.probes for rank in timeline.run.ranks}
    exited = {rank.rank for rank in timeline.run.ranks if rank.info.with_process and rank.info.ending == CLEAN}
    on_device = not waits_on_the_host(timeline.run.info.versions)
    answered = any(each.by_flight for each in calls.values())
    return {
        number: _standing(
            each,
            on_axis(looks[number], clocks.get(number)),
            failed=_failed(each.rank, records[number]),
            sees_waits=probes[number].get(WAITS) == ON,
            exited=number in exited,
            owes_flight=answered and not each.by_flight and probes[number].get(FLIGHTS) == ON,
            on_device=on_device,
            imported=timeline.run.info.imported,
        )
        for number, each in calls.items()
    }


def _failed(rank: RankTimeline, records: RankRecords) -> Raised | None:
    """The error of the communication that ended the rank; None without one."""
    ended = exception_of(rank, records)
    if ended is None:
        return None
    return ended[1].counted if ended[1].counted.of_communication else ended[1].hidden_by


def on_axis(looks: Sequence[Look], clock: RankClock | None) -> Sequence[Look]:
    """Return the looks with their times on the common axis."""
    if clock is None or not looks:
        return looks
    times = clock.on_axis(np.array([look.at_ns for look in looks]))
    return [replace(look, at_ns=int(at_ns)) for look, at_ns in zip(looks, times, strict=True)]


def _standing(
    calls: RankCalls,
    looks: Sequence[Look],
    *,
    failed: Raised | None,
    sees_waits: bool,
    exited: bool,
    owes_flight: bool,
    on_device: bool,
    imported: bool,
) -> Standing:
    """`owes_flight`: others wrote their flight recorder when asked. `on_device`: waits stop a stream, not the thread.
    `imported`: only the calls are known.
    """
    rank, progress_ns = calls.rank, _progress_ns(calls)
    raised = rank.ending not in (None, CLEAN)
    looks = _of_the_stop([_framed(look) for look in looks if look.at_ns >= progress_ns], raised=raised)
    stack = next((look.stack for look in reversed(looks) if look.stack), "")
    frames = training_thread(stack)
    place = place_of(frames)
    alone = place is Place.OUTSIDE and _sleeps_alone(looks)
    if on_device and place is Place.OUTSIDE and not alone:
        place = None  # any line may wait for the device, e.g. `loss.item()`, and the device for another rank
    main = rank.main
    phase = open_phase(main)
    certain = [call for call in calls.outstanding if call.identity in calls.waiting or _holds_thread(calls, call)]
    outstanding = calls.outstanding
    if calls.by_flight and place is Place.COMMUNICATION and len({call.channel for call in outstanding}) == 1:
        certain = list(outstanding)
    # Where DDP waits, its failed collective has an ordinary end. It did not complete if a member did not join it.
    unseen = raised or place in (Place.COMMUNICATION, Place.BACKWARD) or phase in UNSEEN_WAITS or on_device or imported
    possible = unseen and place is not Place.OUTSIDE and rank.ending != CLEAN
    last = [
        call for call in calls.calls[-1:] if raised and call.operation in FROM_ALL_TO_ALL and _is_current(call, rank)
    ]
    shown = bool(certain) and (rank.since_ns is None or bool(looks))
    waits = certain or list(dict.fromkeys([*calls.outstanding, *last]) if possible else [])
    return Standing(
        rank=rank.rank,
        calls=calls,
        waits=tuple(waits),
        certain=shown,
        frames=frames,
        place=place,
        phase=phase,
        progress_ns=progress_ns,
        until_ns=_until_ns(calls, looks, waits),
        state=next((look.state for look in reversed(looks) if look.state), ""),
        seen=() if frames else tuple(_seen(looks)),
        no_stack="" if frames else next((look.no_stack for look in reversed(looks) if look.no_stack), ""),
        locked=next((look.locked for look in reversed(looks) if look.state), False),
        noticed_ns=next((look.at_ns for look in looks if look.by_agent), None),
        failed_at=None if failed is None else failed.site or None,
        timed_out=failed is not None and is_timeout(failed.message),
        sees_waits=sees_waits,
        sleeps_alone=alone,
        exited=exited,
        holds_lock=holds_lock(stack) or (owes_flight and _time_since_stack_ns(looks) >= ANSWER_NS),
    )


def _is_current(call: Call, rank: RankTimeline) -> bool:
    """False for a call of an earlier step. Between two windows the last recorded call may be many steps old."""
    return rank.open_step is None or call.step in (NO_STEP, rank.open_step)


def _time_since_stack_ns(looks: Sequence[Look]) -> int:
    """Time from the stacks to the last look at the same process."""
    return max((looks[-1].at_ns - look.at_ns for look in looks if look.stack), default=0)


def _framed(look: Look) -> Look:
    """Leave out a text without frames: the agent's note of the signal that ended the process."""
    return look if training_thread(look.stack) else replace(look, stack="")


def _of_the_stop(looks: Sequence[Look], *, raised: bool) -> list[Look]:
    """Leave out stacks of the process's end after a stop: an interrupted rank may answer before it is gone."""
    shown: list[Look] = []
    for look in looks:
        is_known = raised or any(earlier.stack for earlier in shown)
        shown.append(replace(look, stack="") if is_known and _is_over(training_thread(look.stack)) else look)
    return shown


def _is_over(frames: Sequence[Frame]) -> bool:
    """Return whether the training's code was over, and what the recorder does at its end ran."""
    return any(STARTUP in frame.path for frame in frames) and not any(frame.is_training for frame in frames)


def _seen(looks: Sequence[Look]) -> Iterator[str]:
    """Describe the process by what the kernel showed since its last progress."""
    last = next((look for look in reversed(looks) if look.state), None)
    if last is None:
        return
    where = [f" in {last.wait_channel}"] if last.wait_channel else []
    where += [f" (system call {last.system_call})"] if last.system_call else []
    yield f"{STATES.get(last.state, f'is in state {last.state}')}{''.join(where)}"
    used = [(look.at_ns, look.cpu_ns) for look in looks if look.cpu_ns is not None]
    if len(used) > 1:
        (first_ns, before_ns), (last_ns, after_ns) = used[0], used[-1]
        yield f"used {(after_ns - before_ns) / 1e9:.2f} s of CPU time in {duration(last_ns - first_ns)}"


def _sleeps_alone(looks: Sequence[Look]) -> bool:
    """True if the main thread sleeps by itself or waits in Python's own code (a lock, a queue), and no other thread
    communicates. Of a line of the training nothing is known: it may be a wait.
    """
    look = next(look for look in reversed(looks) if look.stack)
    threads = other_threads(look.stack)
    if not shows_all_threads(look.stack):
        return False
    if any(place_of(frames) is not Place.OUTSIDE or frames[0].is_training for frames in threads if frames):
        return False
    return look.wait_channel in SLEEPS or not training_thread(look.stack)[0].is_training


def _holds_thread(calls: RankCalls, call: Call) -> bool:
    """True if the thread is inside the call itself: it is synchronous, unfinished, and nothing began after it."""
    began_ns = int(calls.rank.main["start_ns"].max(initial=0))
    return call.in_training_thread and not call.is_async and call.start_ns == began_ns and call.end_ns == OPEN


def _progress_ns(calls: RankCalls) -> int:
    """The last begin or end of the training's own work, or the last collective. What an exception closed is no
    progress.
    """
    issued_ns = calls.calls[-1].start_ns if calls.by_flight and calls.calls else 0
    kept = own_work(calls.rank.main, raised=calls.rank.ending not in (None, CLEAN))
    done = kept[(kept["flags"] & Flag.RAISED == 0) & (kept["end_ns"] != OPEN)]
    began_ns = int(calls.rank.main["start_ns"][:1].max(initial=0))
    return max(issued_ns, began_ns, int(kept["start_ns"].max(initial=0)), int(done["end_ns"].max(initial=0)))


def _until_ns(calls: RankCalls, looks: Sequence[Look], waits: list[Call]) -> int | None:
    """Latest evidence of life: a look, a recorded end, or a wait that ended by an exception."""
    raised = [call.end_ns for call in waits if call.raised and call.end_ns != OPEN]
    ended = [] if calls.rank.ending is None else [calls.rank.last_ns]
    return max([*raised, *ended, *(look.at_ns for look in looks)], default=None)
