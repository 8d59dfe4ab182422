"""Learning rates that differ between ranks with the same gradients: replicas of the model drift apart.

All ranks write their rates in the same few steps. Ranks may count a step at another place, so a rate differs only if it
is outside of what the other rank has from the reading before to the one after, and only if it does so in several
readings. A rate that rises and falls several times may do so between readings too: then it has to be outside of all
that the other rank has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.arrays import Bools, Floats, Ints
from traincope.events import LEARNING_RATES
from traincope.store import RankRecords
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline

SAME = 0.01
"""Relative difference up to which rates are the same: the order of sums on a device may change one by less."""
READINGS = 3
"""Readings in which rates must differ: one or two may be of a schedule whose rates change from step to step."""
MAX_SERIES = 64
"""Distinct series of rates that are compared; further ones are of few ranks each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentRates:
    """Learning rates of one parameter group."""

    rates: Mapping[int, float]
    """Rank -> its rate in the last reading in which rates differ."""
    step: int
    """Step of that reading."""
    since: int
    """Step of the first reading in which rates differ."""
    odd: tuple[int, ...]
    """Ranks whose rates are not those of most ranks; empty without a majority."""


Optimizer = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Its number, the ranks that it shares gradients with, and the parameters of each group: all alike on these ranks."""
Readings = Mapping[int, tuple[float, ...]]
"""Step -> rate of each group of parameters; NaN if unknown."""


def different_rates(timeline: Timeline) -> DifferentRates | None:
    """Find the first learning rate that differs between replicas; None if none does, or if records are missing."""
    by_optimizer: dict[Optimizer, dict[int, Readings]] = {}
    records = {rank.rank: rank for rank in timeline.run.ranks}
    for rank in timeline.ranks:
        for optimizer, readings in _readings(rank, records[rank.rank]).items():
            by_optimizer.setdefault(optimizer, {})[rank.rank] = readings
    for optimizer in sorted(by_optimizer):
        ranks, (_, replicas, parameters) = by_optimizer[optimizer], optimizer
        if replicas[-1] == len(ranks) > 1:
            found = (_of_group(ranks, group) for group in range(len(parameters)))
            if (different := next(filter(None, found), None)) is not None:
                return different
    return None


def _readings(rank: RankTimeline, records: RankRecords) -> Mapping[Optimizer, Readings]:
    found: dict[Optimizer, dict[int, tuple[float, ...]]] = {}
    numbers = [number for number, name in enumerate(rank.names) if name == LEARNING_RATES]
    for thread in rank.threads.values() if numbers else ():
        events = recorder_events(thread)
        for event in events[np.isin(events["name"], numbers)]:
            details = records.details.get(int(event["group"]), {})
            try:
                number, rates = int(details["optimizer"]), [_number(rate) for rate in details["rates"]]
                replicas, parameters = (tuple(map(int, details[name])) for name in ("replicas", "parameters"))
            except (KeyError, TypeError, ValueError):
                continue  # the limit of details was reached, or the file is damaged
            if replicas and len(rates) == len(parameters):
                found.setdefault((number, replicas, parameters), {})[int(event["step"])] = tuple(rates)
    return found


def _number(rate: object) -> float:
    return float(rate) if isinstance(rate, int | float) else np.nan


def _of_group(ranks: Mapping[int, Readings], group: int) -> DifferentRates | None:
    steps = sorted(set.intersection(*(set(readings) for readings in ranks.values())))
    rates = np.array([[readings[step][group] for step in steps] for readings in ranks.values()])
    if len(steps) < READINGS or np.isnan(rates).any():
        return None
    alike = _alike(rates)
    chosen = rates[[rows[0] for rows in alike]]
    apart = _apart(chosen)
    differ = apart.sum(axis=2) >= READINGS
    if not differ.any():
        return None
    sizes = np.array([len(rows) for rows in alike])
    usual = int(np.argmax(~differ @ sizes))
    is_majority = 2 * int(~differ[usual] @ sizes) > len(ranks)
    shown = np.flatnonzero(apart[differ].any(axis=0))
    numbers = np.array([*ranks])
    return DifferentRates(
        rates={int(numbers[row]): float(rates[row, shown[-1]]) for rows in alike for row in rows},
        step=steps[int(shown[-1])],
        since=steps[int(shown[0])],
        odd=tuple(sorted(int(numbers[row]) for at in np.flatnonzero(differ[usual]) for row in alike[at]))
        if is_majority
        else (),
    )


def _alike(rates: Floats) -> list[Ints]:
    """Group rows whose values are the same in about `SAME`: the `MAX_SERIES` most common series."""
    size = np.log(np.abs(rates) + np.finfo(np.float64).tiny) / SAME
    _, series = np.unique(np.rint(size), axis=0, return_inverse=True)
    rows = [np.flatnonzero(series.ravel() == number) for number in range(int(series.max()) + 1)]
    return sorted(rows, key=len, reverse=True)[:MAX_SERIES]


def _apart(rates: Floats) -> Bools:
    """By row, other row and reading: whether the rate of each is outside of what the other has around the reading."""
    around = np.pad(rates, ((0, 0), (1, 1)), mode="edge")
    windows = np.stack([around[:, :-2], rates, around[:, 2:]])
    low, high = windows.min(axis=0), windows.max(axis=0)
    turns = np.array([_num_turns(row) for row in rates]) > 1
    low[turns], high[turns] = rates[turns].min(axis=1)[:, None], rates[turns].max(axis=1)[:, None]
    outside: Bools = (rates[:, None] < low[None] * (1 - SAME)) | (rates[:, None] > high[None] * (1 + SAME))
    return outside & outside.swapaxes(0, 1)


def _num_turns(rates: Floats) -> int:
    """Count how often the rates begin to rise or to fall after the other: 1 for a warm-up and a decay."""
    directions = np.sign(np.diff(rates))
    directions = directions[directions != 0]
    return int((directions[1:] != directions[:-1]).sum())
