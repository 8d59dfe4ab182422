"""Learning rates that differ between ranks with the same gradients: replicas of the model drift apart.

All ranks write their rates in the same steps. Ranks may count a step at another place, so a rate differs only if it is
none that the other rank has between the reading before and the one after, and only if it does so in several readings.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.events import LEARNING_RATES
from traincope.store import RankRecords
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline

SAME = 0.01
"""Relative difference up to which rates are the same: the order of sums on a device may change one by less."""
READINGS = 3
"""Readings in which rates must differ: one or two may be of a schedule whose rates change from step to step."""


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


def _readings(rank: RankTimeline, records: RankRecords) -> dict[Optimizer, Readings]:
    found: dict[Optimizer, dict[int, tuple[float, ...]]] = {}
    for thread in rank.threads.values():
        for event in recorder_events(thread):
            if rank.name(int(event["name"])) != LEARNING_RATES:
                continue
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
    numbers, rates = [*ranks], np.array([[readings[step][group] for step in steps] for readings in ranks.values()])
    if len(steps) < READINGS or np.isnan(rates).any():
        return None
    around = np.pad(rates, ((0, 0), (1, 1)), mode="edge")
    windows = np.stack([around[:, :-2], rates, around[:, 2:]])
    low, high = windows.min(axis=0) * (1 - SAME), windows.max(axis=0) * (1 + SAME)
    outside = (rates[:, None] < low[None]) | (rates[:, None] > high[None])
    apart = outside & outside.swapaxes(0, 1)  # by rank, other rank and reading
    differ = apart.sum(axis=2) >= READINGS
    if not differ.any():
        return None
    usual = max(range(len(numbers)), key=lambda row: np.count_nonzero(~differ[row]))
    odd = differ[usual] if 2 * np.count_nonzero(~differ[usual]) > len(numbers) else np.zeros(len(numbers), dtype=bool)
    shown = apart[differ].any(axis=0)
    return DifferentRates(
        rates=dict(zip(numbers, rates[:, np.flatnonzero(shown)[-1]].tolist(), strict=True)),
        step=steps[int(np.flatnonzero(shown)[-1])],
        since=steps[int(np.argmax(shown))],
        odd=tuple(number for number, is_odd in zip(numbers, odd, strict=True) if is_odd),
    )
