"""Healthy days of training, replayed through the watchdog and the hang analysis: every alarm is a false one.

`python -m evaluation.score.replays [--seed N] [--days 1000]`. A replay is one day of one node. Steps are shorter than
the learned time, so only the pauses of the day are judged: the real watchdog decides when to look, by the clock of the
replay, and the real analysis judges the records and stacks of that instant.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.judging import at_least_one
from tests.timeline.build import Row, collective, group, phase, rank, run, stall, step
from traincope.analysis.faults.endings import endings
from traincope.analysis.faults.hangs.evidence.patience import FLOOR_NS, MULTIPLE, UNLEARNED_NS
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.hangs.hangs import hangs
from traincope.events import OPEN, Flag, Phase
from traincope.live.node.noticing.watchdog import Watchdog
from traincope.live.node.rank import RankTail
from traincope.live.window import RankState, RankStatus
from traincope.store import Look, RankRecords
from traincope.store.side_tables.rows import Row as StepRow
from traincope.timeline import build_timeline
from traincope.timeline.collectives.instances import match_instances

S = 1_000_000_000
POLL_NS = S
"""Time between two looks of the agent at the job's positions."""
SHORTER = 0.97
"""A pause ends at this share of the time that a pause of its kind may take, at the latest."""
DEBUGGED_NS = 8 * 3600 * S
MAX_GC_NS = 120 * S
PAUSES_PER_DAY = 4
KEPT_STEPS = 6
"""Steps before a pause whose records the replay makes."""

WAITING = """Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3112 in all_reduce
  File "/home/me/train.py", line 30 in main
"""
IN_BACKWARD = """Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 869 in _engine_run_backward
  File "/home/me/train.py", line 30 in main
"""
WORKING = """Current thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134 in forward
  File "/home/me/train.py", line 22 in main
"""
DEBUGGING = """Current thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/cmd.py", line 126 in cmdloop
  File "/usr/lib/python3.11/pdb.py", line 338 in interaction
  File "/home/me/train.py", line 9 in main
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A harmless reason to stand still."""

    phase: Phase
    longest_ns: int
    """Longest time of one such pause."""
    stacks: tuple[str, ...] = (WORKING,)
    all_ranks: bool = False
    """All ranks pause. Otherwise one or all of them do, by chance, and the others wait for them."""
    by_steps: bool = False
    """It may take as long as the learned multiple of the longest step, not `longest_ns`."""
    first_steps: bool = False
    traced: bool = False
    """A debugger stopped the process."""


KINDS = {
    "first steps": Kind(phase=Phase.FORWARD, longest_ns=UNLEARNED_NS, first_steps=True),
    "compilation": Kind(phase=Phase.COMPILE, longest_ns=UNLEARNED_NS),
    "garbage collection": Kind(phase=Phase.GC, longest_ns=MAX_GC_NS),
    "checkpoint": Kind(phase=Phase.CHECKPOINT_STALL, longest_ns=UNLEARNED_NS),
    "evaluation": Kind(phase=Phase.EVALUATION, longest_ns=UNLEARNED_NS, all_ranks=True),
    "long document": Kind(phase=Phase.FORWARD, longest_ns=0, stacks=(WORKING, IN_BACKWARD), by_steps=True),
    "next epoch's data": Kind(phase=Phase.DATA_WAIT, longest_ns=UNLEARNED_NS, all_ranks=True),
    "debugger's prompt": Kind(phase=Phase.FORWARD, longest_ns=DEBUGGED_NS, stacks=(DEBUGGING,)),
    "process held by a debugger": Kind(phase=Phase.FORWARD, longest_ns=DEBUGGED_NS, stacks=("",), traced=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    name: str
    kind: Kind
    at_ns: int
    """Last event before it."""
    length_ns: int
    paused: tuple[int, ...]
    stack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    size: int
    step_ns: int
    detailed: bool
    """The pauses fall into a window. Otherwise no collective is recorded there."""
    earlier: tuple[Pause, ...] = ()
    """Pauses of the day so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    num_pauses: int
    num_judged: int
    alarms: tuple[str, ...]


class _Tail:
    """In place of a rank's files: its state at one instant of the replay."""

    def __init__(self, records: RankRecords, last_ns: int) -> None:
        self.rank, self.info, self.directory, self.last_record_ns = records.rank, records.info, Path("replay"), last_ns
        self.last_progress_ns = last_ns
        self._records = records

    def main(self) -> NDArray[np.void]:
        return self._records.thread("main")

    def status(self) -> RankStatus:
        return RankStatus(
            rank=self.rank,
            info=self.info,
            state=RankState.ALIVE,
            last_record_ns=self.last_record_ns,
            last_record_wall_ns=self.last_record_ns,
            num_records=0,
            num_dropped=0,
        )


class Judge(Watchdog):
    """The watchdog, whose analysis runs here in place of in a process of its own."""

    def __init__(self) -> None:
        super().__init__(Path("replay"), looks=True)
        self.num_judged = 0
        self.ranks: Sequence[RankRecords] = ()
        self.found: tuple[Hang, ...] = ()

    def _ask_analysis(self) -> dict[str, Any]:
        self.num_judged += 1
        timeline = build_timeline(run(*self.ranks))
        self.found += hangs(timeline, match_instances(timeline), endings(timeline))
        return {}


def replay(rng: random.Random) -> Replay:
    """One day with drawn pauses."""
    job = Job(size=rng.choice((2, 4, 8)), step_ns=int(S * 10 ** rng.uniform(-1.3, 1.3)), detailed=rng.random() < 0.5)
    alarms: list[str] = []
    num_judged = 0
    names = sorted(rng.sample(sorted(KINDS), PAUSES_PER_DAY), key=lambda name: not KINDS[name].first_steps)
    for number, name in enumerate(names):
        pause = _drawn(rng, job, name, at_ns=(number + 1) * 20_000 * S)
        judge = judged(job, pause)
        num_judged += judge.num_judged
        alarms += [f"{name} of {pause.length_ns / 1e9:.0f} s: {hang.evidence}" for hang in judge.found]
        job = replace(job, earlier=(*job.earlier, pause))
    return Replay(num_pauses=len(names), num_judged=num_judged, alarms=tuple(alarms))


def _drawn(rng: random.Random, job: Job, name: str, *, at_ns: int) -> Pause:
    kind = KINDS[name]
    longest_ns = max(FLOOR_NS, MULTIPLE * job.step_ns) if kind.by_steps else kind.longest_ns
    everyone = tuple(range(job.size))
    return Pause(
        name=name,
        kind=kind,
        at_ns=at_ns,
        length_ns=int(SHORTER * longest_ns * rng.uniform(0.01, 1.0)),
        paused=everyone if kind.all_ranks or rng.random() < 0.3 else (rng.randrange(job.size),),
        stack=rng.choice(kind.stacks),
    )


def judged(job: Job, pause: Pause) -> Judge:
    """Let the watchdog see the pause, second by second."""
    judge = Judge()
    num_steps = 1 if pause.kind.first_steps else KEPT_STEPS
    judge.learn([_row(job, pause, at) for at in range(num_steps)], warm_up=0)
    ranks = [_records(job, pause, number, num_steps) for number in range(job.size)]
    tails = [_Tail(records, pause.at_ns) for records in ranks]
    for now_ns in _instants(pause):
        judge.ranks = [_seen(records, job, pause, now_ns=now_ns) for records in ranks]
        judge.look(cast(Sequence[RankTail], tails), now_ns=now_ns)
    return judge


def _instants(pause: Pause) -> Iterator[int]:
    """Each second of the first minute, and then ever fewer: the watchdog looks again after twice the time."""
    after_ns = POLL_NS
    while after_ns < pause.length_ns:
        yield pause.at_ns + after_ns
        after_ns += max(POLL_NS, after_ns // 60)
    yield pause.at_ns + pause.length_ns


def _row(job: Job, pause: Pause, at: int) -> StepRow:
    return StepRow(
        rank=0,
        step=at,
        start_ns=_begin_ns(job, pause, at),
        wall_ns=job.step_ns,
        terms={},
        own_ns=0,
        anomalous=False,
    )


def _begin_ns(job: Job, pause: Pause, at: int, *, num_steps: int = KEPT_STEPS) -> int:
    return pause.at_ns - (num_steps - at) * job.step_ns - job.step_ns // 10


def _records(job: Job, pause: Pause, number: int, num_steps: int) -> RankRecords:
    """The steps before the pause, and the open step."""
    flags = Flag.DETAILED if job.detailed else 0
    rows: list[Row] = [
        phase(each.kind.phase, each.at_ns, each.at_ns + each.length_ns)
        for each in job.earlier
        if number in each.paused and each.kind.phase is not Phase.FORWARD
    ]
    for at in range(num_steps + 1):
        begin = _begin_ns(job, pause, at, num_steps=num_steps)
        rows.append(step(at, begin, OPEN if at == num_steps else begin + job.step_ns, flags=flags))
        if job.detailed and at < num_steps:
            half = begin + job.step_ns // 2
            rows.append(collective(half, half + job.step_ns // 10, name="all_reduce", sequence=at, at=at))
    if number in pause.paused:
        rows.append(phase(pause.kind.phase, pause.at_ns, OPEN, at=num_steps))
    elif job.detailed:
        call = collective(pause.at_ns, OPEN, name="all_reduce", sequence=num_steps, at=num_steps)
        rows += [call, stall(call, pause.at_ns, OPEN)]
    else:
        rows.append(phase(Phase.BACKWARD, pause.at_ns, OPEN, at=num_steps))
    records = rank(number, *rows, groups=[group("dp", *range(job.size))], ending=None)
    return replace(records, info=replace(records.info, probes={**records.info.probes, "waits": "on"}))


def _seen(records: RankRecords, job: Job, pause: Pause, *, now_ns: int) -> RankRecords:
    """Add a look: the process lives, and stands in this stack."""
    is_paused = records.rank in pause.paused
    stack = pause.stack if is_paused else (WAITING if job.detailed else IN_BACKWARD)
    state = "t" if is_paused and pause.kind.traced else "S"
    return replace(records, looks=(Look(at_ns=now_ns, state=state, stack=stack, by_agent=True),))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--days", type=at_least_one, default=1_000)
    options = parser.parse_args()
    rng, pauses, looks = random.Random(options.seed), 0, 0
    alarms: Counter[str] = Counter()
    began = time.monotonic()
    for _ in range(options.days):
        done = replay(rng)
        pauses, looks = pauses + done.num_pauses, looks + done.num_judged
        alarms.update(done.alarms)
    count = sum(alarms.values())
    print(
        f"seed {options.seed}: {options.days} healthy node-days with {pauses} pauses, {looks} looks judged in "
        f"{time.monotonic() - began:.0f} s; {count} false alarms, {1_000 * count / options.days:.1f} per 1,000 days"
    )
    for text, times in alarms.most_common(20):
        print(f"    {times}: {text}")
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main())
