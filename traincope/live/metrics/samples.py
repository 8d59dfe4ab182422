"""Conversion of a state and the current time to samples of the catalogue."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traincope.analysis.reliability.reliability import of_job
from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.metrics.state import State
from traincope.live.window import RankState
from traincope.metrics import catalogue
from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.labels import (
    NOWHERE,
    Placement,
    badput_by_cause,
    clean_label,
    mtbf_bounds,
    rank_labels,
    run_labels,
    time_parts,
)
from traincope.metrics.metric import Unit
from traincope.metrics.sample import Sample
from traincope.metrics.values import is_shown

BY_NAME = {metric.name: metric for metric in CATALOGUE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Time of a scrape."""

    monotonic_ns: int
    wall_ns: int
    cpu_ns: int
    """CPU time of this process so far."""

    @classmethod
    def now(cls) -> "Moment":
        return cls(monotonic_ns=time.monotonic_ns(), wall_ns=time.time_ns(), cpu_ns=time.process_time_ns())


def samples(
    state: State,
    *,
    host: str,
    moment: Moment,
    hardware: Mapping[SeriesKey, float],
    placed: Placement = NOWHERE,
) -> list[Sample]:
    """All series with a known value. A counter at 0 may have no series (`is_shown`). `hardware`: GPU values."""
    node = (clean_label(state.info.label), clean_label(host))
    numbers = {
        **{key: _in_base_unit(key, value) for key, value in state.highest.items() if is_shown(BY_NAME[key[0]], value)},
        **state.latest,
        **hardware,
        **dict(_rank_values(state, moment, placed)),
        **dict(_agent_values(state, moment)),
        **dict(_job_values(state, moment)),
    }
    listed = [_sample(key, node, value) for key, value in numbers.items()]
    listed += [
        Sample(
            metric=BY_NAME[name],
            labels=(*node, *labels),
            value=histogram.distribution,
            exemplars=tuple(histogram.examples.values()),
        )
        for (name, labels), histogram in state.histograms.items()
    ]
    return listed


def _sample(key: SeriesKey, node: tuple[str, str], value: float) -> Sample:
    name, labels = key
    return Sample(metric=BY_NAME[name], labels=(*node, *labels), value=value)


def _in_base_unit(key: SeriesKey, value: float) -> float:
    return value / 1e9 if BY_NAME[key[0]].unit is Unit.SECONDS else value


def _rank_values(state: State, moment: Moment, placed: Placement) -> Iterator[tuple[SeriesKey, float]]:
    for rank in state.ranks:
        yield series_key(catalogue.RANK_INFO, rank.rank, *rank_labels(rank.info, placed=placed)), 1
        if rank.state != RankState.ENDED:
            yield series_key(catalogue.DATA_AGE, rank.rank), max(moment.monotonic_ns - rank.last_record_ns, 0) / 1e9
    for state_name in RankState:
        yield series_key(catalogue.RANKS, state_name.value), sum(rank.state == state_name for rank in state.ranks)
    yield series_key(catalogue.RECORDS), sum(rank.num_records for rank in state.ranks)
    yield series_key(catalogue.DROPPED), sum(rank.num_dropped for rank in state.ranks)


def _agent_values(state: State, moment: Moment) -> Iterator[tuple[SeriesKey, float]]:
    yield series_key(catalogue.RUN_INFO, *run_labels(state.info, attempt=state.attempt)), 1
    if state.clock is not None:
        yield series_key(catalogue.LEDGER_CLOCK, state.clock.value), 1
    yield series_key(catalogue.AGENT_TIME), moment.cpu_ns / 1e9
    yield series_key(catalogue.AGENT_LAG), max(moment.monotonic_ns - state.at_ns, 0) / 1e9


def _job_values(state: State, moment: Moment) -> Iterator[tuple[SeriesKey, float]]:
    """Values of the job. An ended job does not grow older."""
    job = state.job
    last_ns = max((rank.last_record_wall_ns for rank in state.ranks), default=0)
    yield series_key(catalogue.CHECKPOINTS), job.num_saved
    since = job.began_ns if job.saved_ns is None else job.saved_ns
    if since is not None and any(rank.state == RankState.ALIVE for rank in state.ranks):
        yield series_key(catalogue.CHECKPOINT_AGE), max(moment.wall_ns - since, 0) / 1e9
    goodput = job.goodput(last_ns=last_ns)
    if goodput is not None:
        for part, ns in time_parts(goodput).items():
            yield series_key(catalogue.JOB_TIME, part), ns / 1e9
        if goodput.productive_ratio is not None:
            yield series_key(catalogue.GOODPUT), goodput.productive_ratio
        reliability = of_job(goodput, job.notes)
        for cause in reliability.causes:
            yield series_key(catalogue.INTERRUPTIONS, cause.cause), cause.count
        for bound, mean_ns in mtbf_bounds(reliability).items():
            yield series_key(catalogue.MTBF, bound), mean_ns / 1e9
        for (part, of_cause), ns in badput_by_cause(reliability).items():
            yield series_key(catalogue.BADPUT, part, of_cause), ns / 1e9
