"""What a metric is, and a sample of one.

A name is written with dots, as OpenTelemetry has it; `Metric.prometheus` is the same name after
OpenTelemetry's own rules for Prometheus (prefix, `_` for dots, the unit's word, `_total` for a counter), so
that both ways into a database lead to one series.
"""

from dataclasses import dataclass
from enum import Enum

PREFIX = "traincope"
NODE_LABELS = ("run", "host")
RANK_LABELS = (*NODE_LABELS, "rank")
GPU_LABELS = (*RANK_LABELS, "gpu")


class Type(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Unit(Enum):
    """Base units; the value is UCUM's code, which OpenTelemetry uses."""

    ONE = "{item}"
    SECONDS = "s"
    RATIO = "1"
    BYTES = "By"
    BYTES_PER_SECOND = "By/s"
    WATTS = "W"
    HERTZ = "Hz"
    CELSIUS = "Cel"

    @property
    def word(self) -> str:
        """What it adds to a Prometheus name; nothing for plain numbers."""
        return "" if self is Unit.ONE else self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    """With dots, without prefix, unit and `total`, e.g. `step.duration`."""
    type: Type
    unit: Unit = Unit.ONE
    help: str
    """What it is, and of which time, in a sentence; another where it is easily misread."""
    labels: tuple[str, ...] = RANK_LABELS
    level: int = 1
    """The recorder's level from which on it is exported."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in its unit, without +Inf."""

    @property
    def prometheus(self) -> str:
        """As queries name it; a histogram's series add `_bucket`, `_sum` and `_count`."""
        words = [PREFIX, *self.name.split(".")]
        if self.unit.word:
            words.append(self.unit.word)
        if self.type is Type.COUNTER:
            words.append("total")
        if self.type is Type.INFO:
            words.append("info")
        return "_".join(words)

    @property
    def otel(self) -> str:
        return f"{PREFIX}.{self.name}"

    @property
    def per_rank(self) -> bool:
        """Whether every rank has series of its own."""
        return "rank" in self.labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What a histogram has counted since the attempt began."""

    counts: tuple[int, ...]
    """By bucket, each for itself; the last is beyond all upper bounds."""
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """One of the values a histogram counted, and where it is from."""

    value: float
    labels: dict[str, str]
    """e.g. {"step": "1200", "rank": "3"}."""
    wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series' value at one moment."""

    metric: Metric
    labels: tuple[str, ...]
    """Values of `metric.labels`, in their order."""
    value: float | Distribution
    """A number; of a histogram what it has counted; of an info 1."""
    exemplars: tuple[Exemplar, ...] = ()
    """Of a histogram: at most one a bucket."""
