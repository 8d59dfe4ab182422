"""Pipelines whose every action takes a known time, and what their bubble must be.

It is worked out here by another way than the analysis goes: each action starts when the one before it on its rank and
all its inputs have ended, tried again until nothing moves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median
from types import MappingProxyType

from tests.distributed.sweep_traffic import messages
from traincope.plan.actions import Action
from traincope.plan.orders import Shape, orders

UNIT_SECONDS = 0.02
"""F, I and W of an ordinary stage; B takes two."""
SLOWER = 1.25
STEPS = 4
"""The first is warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pipeline to be run."""

    schedule: str
    shape: Shape
    slow_stage: int | None = None
    """Its actions take a quarter longer."""
    clips: bool = False
    """Whether the gradients' norm, over all stages, is taken at the end of every step."""
    ring: int = 1
    """Ranks of a stage that pass something round in every forward and backward, as context parallelism does."""
    link: float = 0.0
    """Units that a message between stages is on the wire."""
    late: float = 0.0
    """Units by which one action of a step, `late_action`, takes longer than its like."""

    @property
    def late_action(self) -> Action:
        """The forward of the middle microbatch, where it enters the pipeline."""
        return Action("F", 0, self.shape.microbatches // 2)

    @property
    def ranks(self) -> int:
        return self.shape.ranks * self.ring

    def factor(self, stage: int) -> float:
        return SLOWER if stage == self.slow_stage else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Mean over the ranks, as shares of the step that these durations make.

    Not of the step's wall time: what torch, gloo and other processes on the machine add has no known
    answer. It is jitter and transfer, and beside them the answer is known.
    """

    schedule: float
    imbalance: float
    transfer: float = 0.0
    """What it stands still for messages on the wire."""
    jitter: float = 0.0
    """What ranks idle for an action that is late."""

    @property
    def both(self) -> float:
        """The bubble without its jitter."""
        return self.schedule + self.imbalance


def truth(case: Case) -> Shares:
    """What the recorder and the analysis must find.

    Jitter is what is idled beyond: for a late action, whose own rank works meanwhile, and less than nothing where a
    rank begins its next step while others still work at this one, as no replay of one step has it.
    """
    made, own = orders(case.schedule, case.shape), units(case)
    stages = range(case.shape.stages)
    even = {(kind, stage): sum(own[kind, s] for s in stages) / len(stages) for kind, stage in own}
    span, span_even, sent_late = played_out(made, own), played_out(made, even), played_out(made, own, link=case.link)
    real = step_units(case)
    work = sum(own[kind, stage] for order in made.values() for kind, stage, _ in order) / case.shape.ranks
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


def units(case: Case) -> dict[tuple[str, int], float]:
    """(kind, stage) -> how long it takes."""
    made = orders(case.schedule, case.shape)
    return {
        (kind, stage): (2 if kind == "B" else 1) * case.factor(stage)
        for order in made.values()
        for kind, stage, _ in order
    }


def step_seconds(case: Case) -> float:
    """How long a step takes if nothing but its actions does."""
    return UNIT_SECONDS * step_units(case)


def step_units(case: Case) -> float:
    """Mean over the ranks, median over the counted ones of steps that follow each other."""
    made, late = orders(case.schedule, case.shape), {case.late_action: case.late}
    begins = dict.fromkeys(made, 0.0)
    periods = []
    for _ in range(STEPS):
        ends = rank_ends(made, units(case), link=case.link, late=late, begins=begins)
        if case.clips:
            ends = dict.fromkeys(made, max(ends.values()))
        periods.append(mean(ends[rank] - begins[rank] for rank in made))
        begins = ends
    return median(periods[1:])


def played_out(
    made: Mapping[int, tuple[Action, ...]], durations: Mapping[tuple[str, int], float], *, link: float = 0.0
) -> float:
    """When the last action of one step ends."""
    return max(rank_ends(made, durations, link=link).values())


def rank_ends(
    made: Mapping[int, tuple[Action, ...]],
    durations: Mapping[tuple[str, int], float],
    *,
    link: float = 0.0,
    late: Mapping[Action, float] = MappingProxyType({}),
    begins: Mapping[int, float] = MappingProxyType({}),
) -> dict[int, float]:
    """When each rank's last action ends; what another rank makes comes `link` later, and `late` actions take longer."""
    rank_of = {action: rank for rank, order in made.items() for action in order}
    before = {action: order[at - 1] for order in made.values() for at, action in enumerate(order) if at}
    ends = {action: 0.0 for order in made.values() for action in order}
    moved = True
    while moved:
        moved = False
        for action, rank in rank_of.items():
            came = [ends.get(one, 0.0) + link * (rank_of.get(one) not in (None, rank)) for one in inputs(action)]
            free = ends[before[action]] if action in before else begins.get(rank, 0.0)
            end = max(free, *came) + durations[action.kind, action.stage] + late.get(action, 0.0)
            moved, ends[action] = moved or end != ends[action], end
    return {rank: ends[order[-1]] for rank, order in made.items()}


def inputs(action: Action) -> list[Action]:
    kind, stage, microbatch = action
    if kind == "F":
        return [Action("F", stage - 1, microbatch)]
    if kind == "W":
        return [Action("I", stage, microbatch)]
    return [Action(kind, stage + 1, microbatch), Action("F", stage, microbatch)]
