"""A state, and the moment somebody asks, as the samples of the catalogue."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traincope import metrics
from traincope.live.series import Series, series
from traincope.live.state import State
from traincope.live.window import RankState
from traincope.metrics import CATALOGUE, Sample, Unit
from traincope_exporters.telling import about_rank, about_run, clean, parts_of_time

BY_NAME = {metric.name: metric for metric in CATALOGUE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When it is asked."""

    monotonic_ns: int
    wall_ns: int
    cpu_ns: int
    """CPU time of this process until then."""

    @classmethod
    def now(cls) -> "Moment":
        return cls(monotonic_ns=time.monotonic_ns(), wall_ns=time.time_ns(), cpu_ns=time.process_time_ns())


def samples(state: State, *, host: str, moment: Moment, hardware: Mapping[Series, float]) -> list[Sample]:
    """All series there are: what is not known, or never was more than nothing, has none. `hardware`: of the GPUs."""
    node = (clean(state.info.id), clean(host))
    numbers = {
        **{key: _number(key, value) for key, value in state.highest.items() if value or _stays(key)},
        **state.latest,
        **hardware,
        **dict(_of_ranks(state, moment)),
        **dict(_of_agent(state, moment)),
        **dict(_of_job(state, moment)),
    }
    told = [_sample(key, node, value) for key, value in numbers.items()]
    told += [
        Sample(
            metric=BY_NAME[name],
            labels=(*node, *labels),
            value=histogram.distribution,
            exemplars=tuple(histogram.examples.values()),
        )
        for (name, labels), histogram in state.histograms.items()
    ]
    return told


def _sample(key: Series, node: tuple[str, str], value: float) -> Sample:
    name, labels = key
    return Sample(metric=BY_NAME[name], labels=(*node, *labels), value=value)


def _number(key: Series, value: int) -> float:
    return value / 1e9 if BY_NAME[key[0]].unit is Unit.SECONDS else value


def _stays(key: Series) -> bool:
    """Whether a counter is shown at 0: not one of many that there may be, as terms of the ledger."""
    return key[0] != metrics.LEDGER.name


def _of_ranks(state: State, moment: Moment) -> Iterator[tuple[Series, float]]:
    for rank in state.ranks:
        yield series(metrics.RANK_INFO, rank.rank, *about_rank(rank.info)), 1
        if rank.state != RankState.ENDED:
            yield series(metrics.DATA_AGE, rank.rank), max(moment.monotonic_ns - rank.last_record_ns, 0) / 1e9
    for known in RankState:
        yield series(metrics.RANKS, known.value), sum(rank.state == known for rank in state.ranks)
    yield series(metrics.RECORDS), sum(rank.num_records for rank in state.ranks)
    yield series(metrics.DROPPED), sum(rank.num_dropped for rank in state.ranks)


def _of_agent(state: State, moment: Moment) -> Iterator[tuple[Series, float]]:
    yield series(metrics.RUN_INFO, *about_run(state.info, attempt=state.attempt)), 1
    yield series(metrics.AGENT_TIME), moment.cpu_ns / 1e9
    yield series(metrics.AGENT_LAG), max(moment.monotonic_ns - state.at_ns, 0) / 1e9


def _of_job(state: State, moment: Moment) -> Iterator[tuple[Series, float]]:
    """A job that has ended grows no older."""
    job = state.job
    last_ns = max((rank.last_record_wall_ns for rank in state.ranks), default=0)
    yield series(metrics.CHECKPOINTS), job.num_saved
    since = job.began_ns if job.saved_ns is None else job.saved_ns
    if since is not None and any(rank.state == RankState.ALIVE for rank in state.ranks):
        yield series(metrics.CHECKPOINT_AGE), max(moment.wall_ns - since, 0) / 1e9
    goodput = job.goodput(last_ns=last_ns)
    if goodput is not None:
        for part, ns in parts_of_time(goodput).items():
            yield series(metrics.JOB_TIME, part), ns / 1e9
        if goodput.productive_ratio is not None:
            yield series(metrics.GOODPUT), goodput.productive_ratio
