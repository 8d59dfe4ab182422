"""A timeline through all analyses, in the order they need each other."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.bubble import Bubble, Idle, StageBubble, measured_transfers, replay_idle, theory
from traincope.analysis.comm import AxisOperation, communication
from traincope.analysis.findings import Finding
from traincope.analysis.host import Pieces, cut
from traincope.analysis.ledger import Ledger, RankLedger, assemble, rank_ledger
from traincope.analysis.pipeline import ReplicaStep, replica_steps, window_ends
from traincope.analysis.stalls import StallSplit, split_stalls
from traincope.analysis.stragglers import Stragglers, stragglers
from traincope.analysis.verdict import verdict
from traincope.timeline import Instances, Timeline, match_instances
from traincope.timeline.instances import group_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that is said about a run. Absent evidence is None."""

    timeline: Timeline
    ledger: Ledger
    comm: tuple[AxisOperation, ...]
    bubble: Bubble | None
    """None: no pipeline."""
    stragglers: Stragglers
    verdict: tuple[Finding, ...]

    @property
    def median_step_ns(self) -> int | None:
        """Median wall time of a counted step, over ranks and steps."""
        walls = [rank.wall_ns[rank.counted] for rank in self.ledger.ranks]
        joined = np.concatenate(walls) if walls else np.empty(0)
        return round(float(np.median(joined))) if len(joined) else None


def analyze(timeline: Timeline) -> Analysis:
    """Where the time of the run went. Pure: nothing is read but the timeline."""
    excluded = _warm_up(timeline)
    instances = match_instances(timeline)
    groups = group_numbers(timeline)
    steps = replica_steps(timeline)
    idle = _idle_by_rank(steps, instances)
    waits = {}
    ledgers = []
    for rank in timeline.ranks:
        own = tuple(step for step in steps if rank.rank in step.ranks)
        ends = np.array(list(window_ends(rank, own).values()), dtype=np.int64)
        pieces = cut(rank, window_ends=ends)
        split = split_stalls(rank, pieces, instances=instances, groups=groups)
        waits[rank.rank] = (pieces, split)
        ledgers.append(rank_ledger(rank, pieces, split, steps=own, idle=idle.get(rank.rank, {}), excluded=excluded))
    return _analysis(timeline, tuple(ledgers), waits, steps=steps, instances=instances, excluded=excluded)


def _analysis(
    timeline: Timeline,
    ledgers: tuple[RankLedger, ...],
    waits: Mapping[int, tuple[Pieces, StallSplit]],
    *,
    steps: tuple[ReplicaStep, ...],
    instances: Instances,
    excluded: frozenset[int],
) -> Analysis:
    ledger = assemble(ledgers, excluded=excluded)
    comm = communication(instances, waits, ledger=ledger)
    bubble = _bubble(
        ledger, tuple(step for step in steps if step.number not in excluded), one_clock=instances.shared_clock
    )
    late = stragglers(timeline, ledger, waits, instances)
    return Analysis(
        timeline=timeline,
        ledger=ledger,
        comm=comm,
        bubble=bubble,
        stragglers=late,
        verdict=verdict(timeline, ledger, bubble, comm, late),
    )


def _warm_up(timeline: Timeline) -> frozenset[int]:
    """The first step of a run that has others: connections are made in it, memory is first touched."""
    numbers = {step.number for rank in timeline.ranks for step in rank.steps}
    return frozenset({min(numbers)} if len(numbers) > 1 else ())


def _idle_by_rank(steps: tuple[ReplicaStep, ...], instances: Instances) -> dict[int, dict[int, Idle]]:
    """Rank -> step number -> what the replays say."""
    transfers = measured_transfers(steps, instances)
    idle: dict[int, dict[int, Idle]] = {}
    for step in steps:
        for rank, values in replay_idle(step, transfers[step.number, step.ranks[0]]).items():
            idle.setdefault(rank, {})[step.number] = values
    return idle


def _bubble(ledger: Ledger, steps: tuple[ReplicaStep, ...], *, one_clock: bool) -> Bubble | None:
    """Per stage from the ledger; theory and schedule from the last counted step."""
    if not steps:
        return None
    ranks_of: dict[int, set[int]] = {}
    for step in steps:
        for rank, order in step.replica.orders.items():
            for action in order:
                ranks_of.setdefault(action.stage, set()).add(rank)
    schedule, microbatches, formula, replayed = theory(steps[-1].replica)
    return Bubble(
        schedule=schedule,
        num_stages=len(steps[-1].replica.orders),
        num_microbatches=microbatches,
        stages=tuple(_stage(ledger, stage, ranks) for stage, ranks in sorted(ranks_of.items())),
        theory_ratio=formula,
        replay_ratio=replayed,
        one_clock=one_clock,
    )


def _stage(ledger: Ledger, stage: int, ranks: set[int]) -> StageBubble:
    own = [rank for rank in ledger.ranks if rank.rank in ranks]

    def total(part: str) -> int:
        return sum(rank.total(f"bubble.{part}") or 0 for rank in own)

    return StageBubble(
        stage=stage,
        ranks=tuple(sorted(ranks)),
        schedule_ns=total("schedule"),
        imbalance_ns=total("imbalance"),
        jitter_ns=total("jitter"),
        wall_ns=sum(rank.total_wall_ns for rank in own),
    )
