"""Table of samples, by metric and labels."""

from collections.abc import Iterable

from traincope.live.metrics.samples import Moment, samples
from traincope.live.metrics.state import State
from traincope.metrics.metric import Metric
from traincope.metrics.sample import Distribution, Sample

HOST = "node-3"
NOW = Moment(monotonic_ns=0, wall_ns=0, cpu_ns=0)


class SampleTable:
    """`table[metric, "0", "forward"]`: labels after run and host."""

    def __init__(self, listed: Iterable[Sample]) -> None:
        self.samples = {(sample.metric.name, *sample.labels[2:]): sample for sample in listed}

    def __getitem__(self, key: tuple[Metric | str, ...] | Metric) -> float:
        value = self.sample(key).value
        assert not isinstance(value, Distribution)
        return value

    def sample(self, key: tuple[Metric | str, ...] | Metric) -> Sample:
        metric, *labels = key if isinstance(key, tuple) else (key,)
        return self.samples[metric.name if isinstance(metric, Metric) else metric, *map(str, labels)]

    def of(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """All series of a metric by their labels."""
        values = {key[1:]: sample.value for key, sample in self.samples.items() if key[0] == metric.name}
        return {labels: value for labels, value in values.items() if not isinstance(value, Distribution)}

    def of_rank(self, rank: int) -> list[Sample]:
        return [s for s in self.samples.values() if s.metric.per_rank and s.labels[2] == str(rank)]


def sample_table(
    state: State, *, moment: Moment = NOW, hardware: dict[tuple[str, tuple[str, ...]], float] | None = None
) -> SampleTable:
    return SampleTable(samples(state, host=HOST, moment=moment, hardware=hardware or {}))
