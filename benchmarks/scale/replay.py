"""Times of a program on all ranks of a mesh: jitter, one straggler, one rank that stops, and the waits that follow.

Every rank repeats the recorded step of its stage. Its own work takes as long as recorded, with seeded jitter. A
collective ends when its last member has joined it, a message when it was sent, each plus `TRANSFER_NS`. So waits follow
from the straggler and from the rank that stops, as in a training.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.scale.program import STALLED, Program
from benchmarks.scale.recording import SHARDS, STAGES
from traincope.analysis.attribution.terms import exposed_transfer, exposed_wait
from traincope.events import Kind, Phase

TRANSFER_NS = 20_000
JITTER = 0.01
"""Standard deviation of the factor of each piece of work."""

Times = NDArray[np.float64]
"""ns since the begin of the run, an array (replica, shard). Infinite: it never happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Size of the run, and what goes wrong in it."""

    ranks: int
    steps: int
    """Steps, each of which has a row."""
    detailed: int
    """The last ones, which have records too: the disk budget has deleted those of the others."""
    seed: int = 0
    straggler_factor: float = 2.0

    @property
    def replicas(self) -> int:
        return self.ranks // (STAGES * SHARDS)

    def rank(self, replica: int, stage: int, shard: int) -> int:
        return (replica * STAGES + stage) * SHARDS + shard

    @property
    def straggler(self) -> tuple[int, int, int]:
        """Replica, stage and shard of the rank whose own work takes `straggler_factor` times as long in every step."""
        return self.replicas // 3, 1, 5

    @property
    def stopped(self) -> tuple[int, int, int]:
        """Replica, stage and shard of the rank that stops within the first forward of the last step."""
        return self.replicas * 2 // 3, 2, 3


@dataclass(slots=True, kw_only=True)
class Replayed:
    """Times of the records of one stage. Arrays (detailed step, record, replica, shard)."""

    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    borders: list[tuple[Times, Times]] = field(default_factory=list)
    """Begin and end of each step."""
    terms: list[dict[str, Times]] = field(default_factory=list)
    """Step -> time of the thread by ledger term, with waits split from transfers over all ranks."""


Key = tuple[int, int, int, bool, int]
"""Step, source stage, destination stage, whether it is a gradient, and number of a message."""


def replay(programs: Sequence[Program], plan: Plan) -> tuple[Replayed, ...]:
    """Replay all stages, each until it needs a message that is not sent yet."""
    shape = (plan.replicas, SHARDS)
    results = tuple(
        Replayed(
            starts=np.full((plan.detailed, len(program.records), *shape), np.inf),
            ends=np.full((plan.detailed, len(program.records), *shape), np.inf),
        )
        for program in programs
    )
    sent: dict[Key, Times] = {}
    running = {stage: _stage(stage, programs[stage], plan, results[stage], sent) for stage in range(STAGES)}
    waiting: dict[int, Key | None] = dict.fromkeys(running)
    while running:
        ready = [stage for stage in running if waiting[stage] is None or waiting[stage] in sent]
        if not ready:
            raise RuntimeError(f"the recorded stages wait for each other: {waiting}")
        for stage in ready:
            try:
                waiting[stage] = next(running[stage])
            except StopIteration:
                del running[stage]
    return results


def _stage(
    stage: int, program: Program, plan: Plan, out: Replayed, sent: dict[Key, Times]
) -> Generator[Key, None, None]:
    random = np.random.default_rng((plan.seed, stage))
    shape = (plan.replicas, SHARDS)
    slow = np.ones(shape)
    if plan.straggler[1] == stage:
        slow[plan.straggler[0], plan.straggler[2]] = plan.straggler_factor
    stops = plan.stopped[1] == stage
    at: Times = np.zeros(shape)
    kinds, phases = program.records["kind"].tolist(), program.records["phase"].tolist()
    whole_step = kinds.index(Kind.STEP)
    first_forward = phases.index(Phase.FORWARD)
    for step in range(plan.steps):
        kept = step - (plan.steps - plan.detailed)
        starts, ends = (out.starts[kept], out.ends[kept]) if kept >= 0 else np.full((2, len(kinds), *shape), np.inf)
        terms: dict[str, Times] = defaultdict(lambda: np.zeros(shape))
        for border in program.borders:
            record, called = border.record, kinds[border.record] in (Kind.COLLECTIVE, Kind.STALL)
            before = at
            in_stall = border.term == STALLED
            work = border.work_ns if not in_stall else 0
            at = at + work * slow * np.maximum(1 + JITTER * random.standard_normal(shape), 0.5)
            if not in_stall:
                terms[border.term] += _length(before, at)
            if not border.ends:
                if called and kinds[record] == Kind.COLLECTIVE and program.is_message(record) and program.sends(record):
                    sent[_key(program, record, stage, step, outgoing=True)] = at
                starts[record] = at
                if stops and step == plan.steps - 1 and record == first_forward:
                    at = at.copy()
                    at[plan.stopped[0], plan.stopped[2]] = np.inf
                continue
            if called:
                begin = _collective(program, record)
                joined = starts[begin]
                axis = program.axis(record)
                if not program.is_message(record):
                    ready = np.broadcast_to(joined.max(axis=0 if axis == "dp" else 1, keepdims=True), shape)
                elif program.sends(record):
                    ready = joined
                else:
                    key = _key(program, record, stage, step, outgoing=False)
                    while key not in sent:
                        yield key
                    ready = sent[key]
                turned, done = np.maximum(at, ready), np.maximum(at, ready + TRANSFER_NS)
                terms[exposed_wait(axis)] += _length(at, turned)
                terms[exposed_transfer(axis)] += _length(turned, done)
                at = done
            ends[record] = at
        for key in [key for key in sent if key[0] < step - 1 and key[2] == stage]:
            del sent[key]  # received
        out.terms.append(dict(terms))
        out.borders.append((starts[whole_step], ends[whole_step]))


def _length(begin: Times, end: Times) -> Times:
    """Time between; 0 where it never ends."""
    with np.errstate(invalid="ignore"):
        length = end - begin
    return np.where(np.isfinite(length), length, 0.0)


def _collective(program: Program, record: int) -> int:
    """The collective that a stall waits for, or the collective itself."""
    records = program.records
    if records["kind"][record] == Kind.COLLECTIVE:
        return record
    same = (records["kind"] == Kind.COLLECTIVE) & (records["sequence"] == records["sequence"][record])
    channel = program.channel(record)
    return next(at for at in np.flatnonzero(same).tolist() if program.channel(at) == channel)


def _key(program: Program, record: int, stage: int, step: int, *, outgoing: bool) -> Key:
    peer = program.source.groups[int(program.records["group"][record])].ranks.index(
        int(program.records["peer"][record])
    )
    source, destination = (stage, peer) if outgoing else (peer, stage)
    return step, source, destination, source > destination, int(program.records["sequence"][record])
