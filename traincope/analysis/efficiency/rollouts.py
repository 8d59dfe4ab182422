"""Rollouts of post-training: their tokens, the rate of generation, and the long tail of their samples.

`traincope.rollout(lengths)` gives the sums of each batch. The samples of a batch are taken to generate side by side,
one token each at a time, so that a token of the longest sample is a unit of time. An engine that fills free places with
other samples wastes less.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Floats, Ints
from traincope.events import (
    LONG_SAMPLE,
    ROLLOUT,
    ROLLOUT_DISCARDED,
    ROLLOUT_GENERATED,
    ROLLOUT_HALF,
    ROLLOUT_LONGEST,
    ROLLOUT_PROMPTS,
    ROLLOUT_SAMPLES,
    Kind,
)
from traincope.timeline import RankTimeline, Timeline

GENERATE = "generate"
MAX_SLOWEST = 5
"""Longest samples that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSample:
    """A sample that was longer than all before on its rank."""

    rank: int
    step: int | None
    id: str
    tokens: int
    tool_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRollouts:
    rank: int
    batches: int
    generated_tokens: int
    mean_longest: float
    """Tokens of the longest sample of a batch, on average."""
    tokens_per_second: float | None
    """Generated tokens by the time of the term `generate` in the same steps; None: the rank has no such time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """All rollouts of the run, over its ranks."""

    samples: int
    prompt_tokens: int
    generated_tokens: int
    discarded_ratio: float
    """Share of the generated tokens that are not trained."""
    tail_ratio: float
    """Share of the generation in which fewer than half of the samples still generate. A cap there saves it."""
    empty_ratio: float
    """Share of the places of samples that have ended before the longest one. Filling them saves it at most."""
    ranks: tuple[RankRollouts, ...]
    slowest: tuple[LongSample, ...]
    """The longest samples, the longest first."""


def rollouts(timeline: Timeline, ledger: Ledger) -> Rollouts | None:
    """Sum the rollouts. Pure. None: the training records none."""
    batches = {rank.rank: found for rank in timeline.ranks if len((found := _batches(rank))["step"])}
    if not batches:
        return None
    ledgers = {rank.rank: rank for rank in ledger.ranks}
    total = {name: int(sum(found[name].sum() for found in batches.values())) for name in ROLLOUT}
    places = sum(float((found[ROLLOUT_LONGEST] * found[ROLLOUT_SAMPLES]).sum()) for found in batches.values())
    tail = total[ROLLOUT_LONGEST] - total[ROLLOUT_HALF]
    longest = sorted(_long_samples(timeline), key=lambda sample: (-sample.tokens, sample.rank))
    return Rollouts(
        samples=total[ROLLOUT_SAMPLES],
        prompt_tokens=total[ROLLOUT_PROMPTS],
        generated_tokens=total[ROLLOUT_GENERATED],
        discarded_ratio=_ratio(total[ROLLOUT_DISCARDED], total[ROLLOUT_GENERATED]),
        tail_ratio=_ratio(tail, total[ROLLOUT_LONGEST]),
        empty_ratio=_ratio(places - total[ROLLOUT_GENERATED], places),
        ranks=tuple(_of_rank(rank, found, ledgers.get(rank)) for rank, found in batches.items()),
        slowest=tuple(longest[:MAX_SLOWEST]),
    )


def _batches(rank: RankTimeline) -> Mapping[str, Floats]:
    """Logged values of each batch, by name, and its `step`. A batch without all of them is left out."""
    records = rank.of_kind(Kind.SCALAR)
    columns: dict[str, Floats] = {}
    at: Ints = np.empty(0, dtype=np.int64)
    for name in ROLLOUT:
        numbers = [number for number, each in enumerate(rank.names) if each == name]
        chosen = records[np.isin(records["name"], numbers)]
        columns[name] = np.ascontiguousarray(chosen["value"]).view(np.float64)
        at = chosen["step"].astype(np.int64)
    count = min(len(values) for values in columns.values())
    return {name: values[:count] for name, values in columns.items()} | {"step": at[:count].astype(np.float64)}


def _of_rank(rank: int, found: Mapping[str, Floats], ledger: RankLedger | None) -> RankRollouts:
    return RankRollouts(
        rank=rank,
        batches=len(found["step"]),
        generated_tokens=int(found[ROLLOUT_GENERATED].sum()),
        mean_longest=float(found[ROLLOUT_LONGEST].mean()),
        tokens_per_second=_rate(found, ledger),
    )


def _rate(found: Mapping[str, Floats], ledger: RankLedger | None) -> float | None:
    generate = None if ledger is None else ledger.terms.get(GENERATE)
    if ledger is None or generate is None:
        return None
    timed = ledger.numbers[ledger.timed]
    ns = int(generate[ledger.timed & np.isin(ledger.numbers, found["step"])].sum())
    tokens = float(found[ROLLOUT_GENERATED][np.isin(found["step"], timed)].sum())
    return tokens / ns * 1e9 if ns else None


def _long_samples(timeline: Timeline) -> Iterator[LongSample]:
    details = {records.rank: records.details for records in timeline.run.ranks}
    for rank in timeline.ranks:
        numbers = [number for number, name in enumerate(rank.names) if name == LONG_SAMPLE]
        events = rank.of_kind(Kind.EVENT)
        for event in events[np.isin(events["name"], numbers)]:
            known = details.get(rank.rank, {}).get(int(event["group"]), {})
            tokens, tools = known.get("tokens"), known.get("tool_seconds")
            if type(tokens) is int:
                yield LongSample(
                    rank=rank.rank,
                    step=int(event["step"]) if event["step"] >= 0 else None,
                    id=str(known.get("id", "")),
                    tokens=tokens,
                    tool_seconds=float(tools) if isinstance(tools, int | float) else None,
                )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
