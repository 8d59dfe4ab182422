"""Pipelines of actions with known durations, and their true bubble.

A sleep ends a little late, and torch works after it, so an action lasts about a hundredth longer than it is asked to.
The truth of a training that ran is therefore that of its durations by the ranks' own clocks, which traincope never
reads.

The computation differs from that of the analysis: each action starts when the previous one on its rank and all its
inputs have ended, iterated until nothing changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median
from types import MappingProxyType

from tests.distributed.sweep.traffic import messages
from traincope.plan.pipeline.actions import EQUAL, Action, Times
from traincope.plan.pipeline.orders import Shape, orders

UNIT_SECONDS = 0.02
"""F, I and W of a normal stage, unless a case has other `times`; B is I and W."""
Durations = Mapping[tuple[str, int], float]
"""(kind, stage) -> units of each of its actions."""
SLOWER = 1.25
STEPS = 4
"""The first is warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pipeline to run."""

    schedule: str
    shape: Shape
    slow_stage: int | None = None
    """Actions of this stage take a quarter longer."""
    clips: bool = False
    """True: every step ends with the norm of the gradients over all stages."""
    ring: int = 1
    """Ranks of a stage that exchange data in a ring in every forward and backward, like context parallelism."""
    link: float = 0.0
    """Units of time that a message between stages is on the wire."""
    times: Times = EQUAL
    """Units of F, I and W of a normal stage."""
    late: float = 0.0
    """Additional units of one action per step, `late_action`."""
    durations: Durations | None = None
    """The actions as they ran, by the ranks' own clocks; None: as they are asked for."""

    @property
    def late_action(self) -> Action:
        """The forward of the middle microbatch on the first stage."""
        return Action("F", 0, self.shape.microbatches // 2)

    @property
    def ranks(self) -> int:
        return self.shape.ranks * self.ring

    def factor(self, stage: int) -> float:
        return SLOWER if stage == self.slow_stage else 1.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Mean over the ranks, as shares of the step that these durations make.

    They are not shares of the wall time, because the additions of torch, gloo and other processes on the machine are
    unknown. Those are jitter and transfer; everything apart from them is known.
    """

    schedule: float
    imbalance: float
    transfer: float = 0.0
    """Stalls for messages on the wire."""
    jitter: float = 0.0
    """Idle time because of a late action."""

    @property
    def both(self) -> float:
        """The bubble without its jitter."""
        return self.schedule + self.imbalance


def truth(case: Case) -> Shares:
    """The shares that the recorder and the analysis must find.

    Jitter is the remaining idle time: positive for a late action, whose own rank works in that time; negative if a rank
    begins its next step while others still work on this one, which no replay of one step contains.
    """
    schedule_orders, durations_of = orders(case.schedule, case.shape), units(case)
    even = {
        (kind, stage): mean(units for (each, _), units in durations_of.items() if each == kind)
        for kind, stage in durations_of
    }
    span, span_even, sent_late = (
        played_out(schedule_orders, durations_of),
        played_out(schedule_orders, even),
        played_out(schedule_orders, durations_of, link=case.link),
    )
    real = step_units(case)
    work = (
        sum(durations_of[kind, stage] for order in schedule_orders.values() for kind, stage, _ in order)
        / case.shape.ranks
    )
    return Shares(
        schedule=(span_even - work) / real,
        imbalance=(span - span_even) / real,
        transfer=(sent_late - span) / real,
        jitter=(real - sent_late - case.late / case.shape.ranks) / real,
    )


def sent(case: Case) -> dict[str, int]:
    """Axis -> messages of all ranks in one step."""
    rounds = 2 * case.shape.microbatches * case.shape.stages * case.ring
    stages = messages(case.schedule, case.shape) * case.ring
    return {"pp": stages} | ({"cp": rounds} if case.ring > 1 else {})


def units(case: Case) -> Durations:
    """The actions' durations."""
    if case.durations is not None:
        return case.durations
    schedule_orders = orders(case.schedule, case.shape)
    return {
        (kind, stage): case.times.duration(kind) * case.factor(stage)
        for order in schedule_orders.values()
        for kind, stage, _ in order
    }


def step_seconds(case: Case) -> float:
    """Duration of a step that contains only its actions."""
    return UNIT_SECONDS * step_units(case)


def step_units(case: Case) -> float:
    """Mean over the ranks, median over the counted consecutive steps."""
    schedule_orders, late = orders(case.schedule, case.shape), {case.late_action: case.late}
    begins = dict.fromkeys(schedule_orders, 0.0)
    periods = []
    for _ in range(STEPS):
        ends = rank_ends(schedule_orders, units(case), link=case.link, late=late, begins=begins)
        if case.clips:
            ends = dict.fromkeys(schedule_orders, max(ends.values()))
        periods.append(mean(ends[rank] - begins[rank] for rank in schedule_orders))
        begins = ends
    return median(periods[1:])


def played_out(schedule_orders: Mapping[int, tuple[Action, ...]], durations: Durations, *, link: float = 0.0) -> float:
    """End of the last action of one step."""
    return max(rank_ends(schedule_orders, durations, link=link).values())


def rank_ends(
    schedule_orders: Mapping[int, tuple[Action, ...]],
    durations: Durations,
    *,
    link: float = 0.0,
    late: Mapping[Action, float] = MappingProxyType({}),
    begins: Mapping[int, float] = MappingProxyType({}),
) -> dict[int, float]:
    """End of each rank's last action; inputs of other ranks come `link` later, and `late` actions take longer."""
    rank_of = {action: rank for rank, order in schedule_orders.items() for action in order}
    before = {action: order[at - 1] for order in schedule_orders.values() for at, action in enumerate(order) if at}
    ends = {action: 0.0 for order in schedule_orders.values() for action in order}
    moved = True
    while moved:
        moved = False
        for action, rank in rank_of.items():
            came = [
                ends.get(source, 0.0) + link * (rank_of.get(source) not in (None, rank)) for source in inputs(action)
            ]
            free = ends[before[action]] if action in before else begins.get(rank, 0.0)
            end = max(free, *came) + durations[action.kind, action.stage] + late.get(action, 0.0)
            moved, ends[action] = moved or end != ends[action], end
    return {rank: ends[order[-1]] for rank, order in schedule_orders.items()}


def inputs(action: Action) -> list[Action]:
    kind, stage, microbatch = action
    if kind == "F":
        return [Action("F", stage - 1, microbatch)]
    if kind == "W":
        return [Action("I", stage, microbatch)]
    later = [Action(each, stage + 1, microbatch) for each in ("B", "I")]
    return [*later, Action("F", stage, microbatch)]
