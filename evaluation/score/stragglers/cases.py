"""Cases of the score: which ranks are slow, when, in which phase and by how much, and the answer that is right."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from evaluation.score.stragglers.training import STEP_SECONDS

PERIOD = 5
"""Steps between two delays of a periodic slowness."""
GROWTH = 0.1
"""Growth of a growing delay per step, relative to its first."""
ONSET_STEP = 20
LINK_RATIO = 0.02
"""Time by which each collective is later on a slow link, as a share of a step. A step of `plain` has 11 collectives."""
LAYOUTS = {"ddp": (2, 3, 4), "fsdp": (2, 4), "tp": (2,), "plain": (2, 3), "pipeline": (4,)}
"""Layout -> numbers of ranks."""
TERMS = {
    "data": ("data_wait",),
    "forward": ("forward",),
    "backward": ("backward",),
    "optimizer": ("optimizer", "unattributed"),
    "end": ("unattributed", "optimizer"),
    "gc": ("gc",),
}
"""Phase of a delay -> terms of the ledger in which it may be found. The injector delays in hooks of the optimizer. The
delay belongs to the optimizer or to no phase, depending on whether the recorder's hook comes before or after it.
"""


class Kind(StrEnum):
    """What is done to a training."""

    STEADY = "steady"
    SINCE = "since step 20"
    GROWING = "growing"
    PERIODIC = "periodic"
    TWO = "two ranks"
    ONCE = "once"
    """One delay of one to three steps: a slow step, and no straggler."""
    SLOW_LINK = "slow link"
    SLOW_LINK_OF_ONE = "slow link of one rank"
    HEALTHY = "healthy"
    NOISY = "healthy, noisy machine"


DELAYED = (Kind.STEADY, Kind.SINCE, Kind.GROWING, Kind.PERIODIC, Kind.TWO)
"""Kinds in which ranks must be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training and what is done to it."""

    kind: Kind
    layout: str
    size: int
    steps: int
    """Recorded steps in which the ranks are slow, or of the whole training."""
    ratio: float = 0.0
    """Mean delay per step, as a share of a step."""
    ranks: tuple[int, ...] = ()
    """The ranks to name."""
    phase: str = ""

    def __str__(self) -> str:
        of = f" by {self.ratio:.0%} in {self.phase} on {self.ranks} of {self.size}" if self.ranks else f" {self.size}"
        return f"{self.kind}: {self.layout}{of}, {self.steps} steps"

    @property
    def mean_seconds(self) -> float:
        """Mean delay of a slow rank in a slow step; of a single delay, all of it."""
        return self.ratio * STEP_SECONDS

    @property
    def first_step(self) -> int:
        return ONSET_STEP if self.kind in (Kind.SINCE, Kind.ONCE) else 1

    @property
    def all_steps(self) -> int:
        """Steps of the training: one more for the warm-up."""
        return self.steps + self.first_step

    @property
    def fault(self) -> str:
        """Text for `traincope run --fault`."""
        shapes = {Kind.GROWING: "growing", Kind.PERIODIC: "periodic", Kind.ONCE: "once"}
        seconds = {
            Kind.GROWING: self.mean_seconds / (1 + GROWTH * (self.steps - 1) / 2),
            Kind.PERIODIC: self.mean_seconds * self.steps / -(-self.steps // PERIOD),
        }.get(self.kind, self.mean_seconds)
        name, phase = ("slow_gc", "forward") if self.phase == "gc" else ("slow", self.phase)
        settings = (
            f"step={self.first_step},phase={phase},seconds={seconds:.6f},shape={shapes.get(self.kind, 'constant')}"
        )
        return "+".join(f"{name}@rank={rank},{settings}" for rank in self.ranks)

    @property
    def link(self) -> tuple[float, int] | None:
        """Seconds by which results of collectives arrive later, and the rank of that link; -1: all ranks."""
        if self.kind is Kind.SLOW_LINK:
            return LINK_RATIO * STEP_SECONDS, -1
        return (LINK_RATIO * STEP_SECONDS, 1) if self.kind is Kind.SLOW_LINK_OF_ONE else None


def cases(rng: random.Random, *, count: int) -> Iterator[Case]:
    """Draw delayed cases: every kind, layout, phase and ratio in turn. Some have single delays, some slow links."""
    kinds = [*DELAYED, Kind.STEADY, Kind.ONCE, Kind.SLOW_LINK, Kind.STEADY, Kind.SLOW_LINK_OF_ONE]
    phases, layouts = list(TERMS), list(LAYOUTS)
    for order in (kinds, phases, layouts):
        rng.shuffle(order)
    for number in range(count):
        kind, phase = kinds[number % len(kinds)], phases[number % len(phases)]
        layout = layouts[(number + number // len(layouts)) % len(layouts)]
        yield _drawn(rng, kind, layout, phase)


def _drawn(rng: random.Random, kind: Kind, layout: str, phase: str) -> Case:
    if kind in (Kind.SLOW_LINK, Kind.SLOW_LINK_OF_ONE):
        return Case(kind=kind, layout="plain", size=rng.choice(LAYOUTS["plain"]), steps=100)
    layout = "ddp" if kind is Kind.TWO else layout
    size = 4 if kind is Kind.TWO else rng.choice(LAYOUTS[layout])
    ranks = tuple(sorted(rng.sample(range(size), 2 if kind is Kind.TWO else 1)))
    if kind is Kind.ONCE:
        return Case(
            kind=kind, layout=layout, size=size, steps=80, ratio=rng.choice((1.2, 2.0, 3.0)), ranks=ranks, phase=phase
        )
    ratio = rng.choice((0.03, 0.05, 0.08, 0.15))
    return Case(
        kind=kind,
        layout=layout,
        size=size,
        steps=300 if ratio < 0.05 else 100,
        ratio=ratio,
        ranks=ranks,
        phase=phase,
    )


def healthy(rng: random.Random, *, count: int) -> Iterator[Case]:
    """Draw healthy trainings, every second one on a machine whose cores others use in bursts."""
    layouts = list(LAYOUTS)
    rng.shuffle(layouts)
    for number in range(count):
        layout = layouts[number % len(layouts)]
        kind = Kind.NOISY if number % 2 else Kind.HEALTHY
        yield Case(kind=kind, layout=layout, size=rng.choice(LAYOUTS[layout]), steps=rng.choice((100, 100, 200)))
