"""Measurements of a preflight, gathered from all ranks. Times are seconds."""

from dataclasses import dataclass, field
from enum import StrEnum

from traincope.errors import UsageError

MAX_STEPS = 10_000
ROUND_LIMITS = (2, 100)


class Round(StrEnum):
    """The two rounds of a check. A name needs both."""

    FIRST = "first"
    SECOND = "second"


class Quantity(StrEnum):
    """Work that one rank measures without communication."""

    PRODUCTS = "matrix products"
    MEMORY = "memory copies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Amount of measuring, and the alarm. Raises UsageError for an impossible value."""

    steps: int = 100
    """Steps of the configured training. 0: none."""
    alarm_ratio: float = 0.15
    """Largest share of a step that the pipeline may idle."""
    repeats: int = 4
    """Interleaved repeats of each measurement in each of the two rounds."""

    def __post_init__(self) -> None:
        if not 0 <= self.steps <= MAX_STEPS:
            nearest = min(max(self.steps, 0), MAX_STEPS)
            raise UsageError(f"--steps is {self.steps}; give 0 to {MAX_STEPS}, the nearest is {nearest}")
        if not 0 < self.alarm_ratio <= 1:
            nearest = 100 if self.alarm_ratio > 1 else 1
            raise UsageError(
                f"--alarm is {100 * self.alarm_ratio:g}; give a percentage above 0 and at most 100, the nearest is "
                f"{nearest}"
            )
        low, high = ROUND_LIMITS
        if not low <= self.repeats <= high:
            nearest = min(max(self.repeats, low), high)
            raise UsageError(f"--repeats is {self.repeats}; give {low} to {high}, the nearest is {nearest}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Host and device of a rank."""

    rank: int
    host: str
    local_rank: int
    device: str
    """Model of the processor or GPU."""
    gpu: str | None = None
    """Index and id of the GPU that the rank uses; None on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A quantity of one rank."""

    rank: int
    quantity: Quantity
    amount: float
    """FLOPs or bytes of one repetition."""
    seconds: dict[Round, tuple[float, ...]]
    """One repetition in each repeat: the fastest on a CPU, the median on a GPU."""
    dtype: str | None = None
    """Type of the factors of a product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTime:
    """Messages between two ranks: half of a round trip."""

    ranks: tuple[int, int]
    """The lower rank first."""
    round: Round
    num_bytes: int
    seconds: tuple[float, ...]
    """One message in each repeat, as in `Rate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTime:
    """A collective of one group, of the member that takes longest."""

    axis: str
    operation: str
    ranks: tuple[int, ...]
    """Members of the group."""
    num_bytes: int
    """Bytes as nccl-tests count them (`plan.layout.bus`)."""
    seconds: tuple[float, ...]
    """One call in each repeat, as in `Rate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Durations of one stage's actions by kind (F, B, I, W)."""

    stage: int
    ranks: tuple[int, ...]
    seconds: dict[Round, dict[str, float]]
    """Lower decile over steps and microbatches, in each half of the run. The halves have no common step,
    if there are several."""
    num_steps: int
    """Steps of both halves."""
    bubble_ratio: float
    """Measured idle share of the step, from the recorder: schedule, imbalance and jitter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The steps of the configured training."""

    steps: int
    """Counted steps."""
    step_seconds: float
    """Median."""
    schedule: str | None = None
    """None without a pipeline, and in the fields below."""
    microbatches: int | None = None
    """Microbatches of a round of the schedule."""
    theory_ratio: float | None = None
    """Idle share by the schedule's formula, for equal stages and instant transfers."""
    stages: tuple[StageTimes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All that was measured."""

    places: tuple[Place, ...]
    """Places of all ranks, in their order."""
    neighbours: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Mesh axis -> pairs of neighbours on it."""
    rates: tuple[Rate, ...] = ()
    pairs: tuple[PairTime, ...] = ()
    sweeps: tuple[SweepTime, ...] = ()
    training: Training | None = None

    @property
    def on_gpus(self) -> bool:
        return any(place.gpu is not None for place in self.places)

    def host(self, rank: int) -> str:
        return self.places[rank].host
