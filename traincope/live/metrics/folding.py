"""Folding of the samples of a node's ranks into series of the node: 10,000 ranks must fit into one Prometheus."""

from collections.abc import Callable, Iterable, Mapping

from traincope.metrics.metric import FOLDED_LABELS, Fold
from traincope.metrics.sample import Sample

PER_RANK_VARIABLE = "TRAINCOPE_METRICS_PER_RANK"
"""`on`: export the series of every rank."""
GPU = "gpu"
FOLDS: Mapping[Fold, Callable[[Iterable[float]], float]] = {Fold.SUM: sum, Fold.MAX: max, Fold.MIN: min}


def folded(samples: Iterable[Sample]) -> list[Sample]:
    """Samples of single ranks and GPUs folded as their metrics declare; the others as they are, in order."""
    kept: list[Sample] = []
    by_series: dict[tuple[str, tuple[str, ...]], list[Sample]] = {}
    for sample in samples:
        if sample.metric.fold is None:
            kept.append(sample)
        elif sample.metric.fold is not Fold.OMIT:
            by_series.setdefault((sample.metric.name, _labels_of_node(sample)), []).append(sample)
    return kept + [_folded(labels, of_ranks) for (_, labels), of_ranks in by_series.items()]


def _folded(labels: tuple[str, ...], of_ranks: list[Sample]) -> Sample:
    metric = of_ranks[0].metric
    values = [sample.value for sample in _each_gpu_once(of_ranks) if isinstance(sample.value, int | float)]
    assert metric.fold is not None
    return Sample(metric=metric, labels=labels, value=FOLDS[metric.fold](values))


def _each_gpu_once(of_ranks: list[Sample]) -> Iterable[Sample]:
    """Ranks that share a GPU have a sample each of the same value."""
    if GPU not in of_ranks[0].metric.labels:
        return of_ranks
    at = of_ranks[0].metric.labels.index(GPU)
    return {sample.labels[at]: sample for sample in of_ranks}.values()


def _labels_of_node(sample: Sample) -> tuple[str, ...]:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    return tuple("" if name in FOLDED_LABELS else value for name, value in pairs)
