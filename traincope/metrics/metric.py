"""Type of a metric: its name, type, unit, help and labels.

A name is written with dots, as in OpenTelemetry. `Metric.prometheus` is the same name after OpenTelemetry's rules for
Prometheus: a prefix, `_` for dots, the unit's word, `_total` for a counter. Both paths into a database lead to one
series.
"""

from dataclasses import dataclass
from enum import Enum

PREFIX = "traincope"
NODE_LABELS = ("run", "host")
RANK_LABELS = (*NODE_LABELS, "rank")
GPU_LABELS = (*RANK_LABELS, "gpu")
LINK_LABELS = (*NODE_LABELS, "port")


class Type(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Unit(Enum):
    """Base units. The value is the UCUM code that OpenTelemetry uses."""

    ONE = "{item}"
    SECONDS = "s"
    RATIO = "1"
    BYTES = "By"
    BYTES_PER_SECOND = "By/s"
    WATTS = "W"
    JOULES = "J"
    HERTZ = "Hz"
    CELSIUS = "Cel"

    @property
    def word(self) -> str:
        """Suffix that the unit adds to a Prometheus name; empty for plain numbers."""
        return "" if self is Unit.ONE else self.name.lower()


class Fold(Enum):
    """Export of a metric's series of single ranks and operations, unless every rank's series are exported."""

    SUM = "sum"
    """One series per node: the sum over its ranks."""
    MAX = "max"
    """One series per node: the largest value."""
    MIN = "min"
    """One series per node: the smallest value."""
    OMIT = "omit"
    """No series."""


FOLDED_LABELS = ("rank", "gpu")
"""Labels that are empty in a series of a whole node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    """Name with dots, without prefix, unit and `total`, for example `step.duration`."""
    type: Type
    unit: Unit = Unit.ONE
    help: str
    """One sentence: the quantity and the time it covers. A second sentence if the metric is easily misread."""
    labels: tuple[str, ...] = RANK_LABELS
    level: int = 1
    """The lowest recorder level at which the metric is exported."""
    fold: Fold | None = None
    """None: always exported as it is."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets in its unit, without +Inf."""

    @property
    def family(self) -> str:
        """Name of the OpenMetrics family: `prometheus` without `_total` or `_info`."""
        words = [PREFIX, *self.name.split("."), self.unit.word]
        return "_".join(filter(None, words))

    @property
    def prometheus(self) -> str:
        """Name in Prometheus queries. The series of a histogram add `_bucket`, `_sum` and `_count`."""
        suffix = {Type.COUNTER: "_total", Type.INFO: "_info"}.get(self.type, "")
        return f"{self.family}{suffix}"

    @property
    def otel(self) -> str:
        return f"{PREFIX}.{self.name}"

    @property
    def per_rank(self) -> bool:
        """True if every rank has series of its own."""
        return "rank" in self.labels
