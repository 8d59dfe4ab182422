"""Findings about work that stops ranks, with the wait that it causes on the others: one finding for both."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.terms import EVALUATION, UNATTRIBUTED
from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.ledger.busy_threads import busy_thread
from traincope.analysis.ledger.host_shortages import usage_rates
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.replaying.prices import Gain, Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.stragglers.stops import Stops, stops
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent, priced
from traincope.analysis.verdict.losses.host_losses import HOST_LOSSES, OTHER_PROCESS, checkpoint_action, host_advice
from traincope.analysis.verdict.losses.late_causes import SHARE, stood_at
from traincope.events import Usage
from traincope.store.job.attempts import LOADING, SAVING
from traincope.timeline import Timeline
from traincope.units import count, duration, numbers

MOST = 0.8
"""Share of the work that few ranks must have to be the ranks of the finding."""
UNEVEN = 2.0
"""Longest length / mean length from which a stop is no example of the others."""
BY_CORES = 0.5
"""A rank's waits for a core / its stops for work that no probe covers, from which the waits may be the stops."""
SHOWN_STEPS = 8
"""Most steps that a sentence lists."""

DOES = {
    "data_wait": ("waits for its data", "wait for their data"),
    "checkpoint_stall": ("saves checkpoints", "save checkpoints"),
    "gc": ("collects garbage", "collect garbage"),
    "compile": ("compiles", "compile"),
    EVALUATION: ("evaluates", "evaluate"),
    UNATTRIBUTED: ("does work that no probe covers", "do work that no probe covers"),
}
"""Term -> what one rank does, and several. In the order of the findings."""
LOADS = ("loads checkpoints", "load checkpoints")
KINDS = {"data_wait": FindingKind.DATA_BOUND, UNATTRIBUTED: FindingKind.STRAGGLER}
"""Term -> kind of its finding, where their names differ."""
BY_FEW = {
    "data_wait": "Compare the data, the file system and the DataLoader's workers of those steps with the other ranks'",
    "checkpoint_stall": "Save in the background (torch.distributed.checkpoint.async_save), let each rank write its own "
    "shard, or save less often",
    "gc": "Collect garbage less often, and on all ranks in the same step; gc.freeze() after the first steps makes each "
    "collection shorter",
    "compile": "Keep tensor shapes constant, also from rank to rank, to compile only once",
    EVALUATION: "Let every rank evaluate a part of the batches, evaluate less often, or evaluate in another job",
    UNATTRIBUTED: "Log, draw or upload in the background or less often, or share that work among the ranks; "
    "traincope.span() around it names it",
}
"""Term -> advice if few ranks do it for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopLoss:
    """The stops for one kind of work, with their finding."""

    term: str
    stops: Stops
    finding: Finding

    @property
    def share(self) -> float:
        return self.finding.estimated_gain_ratio or 0.0

    @property
    def waited_share(self) -> float:
        """Share of step time that others wait for it, as their steps show."""
        return 0.0 if self.stops.is_bound else self.stops.waited_ratio


def stop_losses(
    timeline: Timeline, ledger: Ledger, late: Mapping[str, Collection[int]], prices: Prices
) -> Iterator[StopLoss]:
    """Yield a finding for each kind of work whose stops cost at least MIN_SHARE.

    `late`: term -> stragglers named for it. Their findings contain the wait. Evaluation by all ranks is no loss: the
    user asked for it. Waits for data of most ranks, or in most steps, are another finding.
    """
    for term in DOES:
        found = None if late.get(term) else stops(timeline, ledger, term)
        if found is None:
            continue
        ranks = _carriers(found)
        gain = found.waited_ratio if term == EVALUATION else found.lost_ratio
        by_few = bool(ranks) and (term not in KINDS or found.followed)
        if term == UNATTRIBUTED and _may_lack_cores(timeline, found, ranks):
            continue
        if gain >= MIN_SHARE and (by_few or term in HOST_LOSSES):
            finding = _finding(timeline, term, found, ranks)
            yield StopLoss(term=term, stops=found, finding=priced(finding, _gain(term, found, gain, prices)))


def _gain(term: str, found: Stops, lost: float, prices: Prices) -> Gain:
    """The gain by a replay of steps that all have detail; otherwise what the lengths of all steps show.

    No replay contains an evaluation, or a part of a term.
    """
    is_whole = not prices.ledger.is_thinned and term not in (EVALUATION, UNATTRIBUTED)
    replayed = prices.replayed(Factors({(None, term): 0.0})) if is_whole else None
    return Gain(ratio=lost, at_most=found.is_bound) if replayed is None else Gain(ratio=replayed)


def _carriers(found: Stops) -> tuple[int, ...]:
    """Return the fewest ranks that have MOST of the work; empty if these are more than half of them."""
    by_size = sorted(found.own_ns, key=lambda rank: -found.own_ns[rank])
    reached = np.cumsum([found.own_ns[rank] for rank in by_size])
    few = int(np.searchsorted(reached, MOST * reached[-1])) + 1
    return tuple(sorted(by_size[:few])) if 2 * few <= len(by_size) else ()


def _may_lack_cores(timeline: Timeline, found: Stops, ranks: Collection[int]) -> bool:
    """Return whether waits for a core may be the stops: a full host takes a rank's time wherever it stands. Work that
    comes in equal intervals, or at one line, is the training's own.
    """
    if found.period_steps is not None or _site(timeline, UNATTRIBUTED, found, tuple(ranks)):
        return False
    waited_ns = []
    for rank in (each for each in timeline.ranks if each.rank in ranks and each.steps):
        between_ns = rank.steps[0].start_ns, rank.steps[-1].end_ns
        rate = usage_rates(rank, between_ns).get(Usage.CORE_WAIT, 0.0)
        waited_ns.append(rate * (between_ns[1] - between_ns[0]) / max(found.own_ns[rank.rank], 1))
    return min(waited_ns, default=0.0) >= BY_CORES


def _finding(timeline: Timeline, term: str, found: Stops, ranks: tuple[int, ...]) -> Finding:
    one, several = DOES[term]
    advice = BY_FEW.get(term, "") if ranks else ""
    if term == "checkpoint_stall":
        action = checkpoint_action([each for each in timeline.ranks if not ranks or each.rank in ranks])
        one, several = LOADS if action == LOADING else DOES[term]
        advice = advice if action == SAVING else ""
    others = len(found.own_ns) - len(ranks)
    who = "the ranks" if not ranks else numbers(ranks, "rank")
    does = f"{who} {one if len(ranks) == 1 else several}{' alone' if ranks and term == EVALUATION else ''}"
    waits = ""
    if found.waited_ratio > 0:
        waits = (
            f", and {'the other rank waits' if others == 1 else 'the others wait'}"
            if ranks
            else ", and wait for the slowest of them"
        )
    lost = f"{'at most ' if found.is_bound else ''}{percent(found.lost_ratio)} of step time"
    shown = _site(timeline, term, found, ranks)
    thread = busy_thread(timeline, ranks[0]) if term == UNATTRIBUTED and len(ranks) == 1 else None
    if thread is not None and thread.ratio >= SHARE:
        shown += f"; {thread.phrase}, and may hold the GIL then"
        advice = f"{advice}. {OTHER_PROCESS}"
    return Finding(
        kind=KINDS.get(term) or FindingKind(term),
        ranks=ranks,
        steps=() if found.is_bound else found.steps,
        confidence=HIGH if found.followed else MEDIUM,
        evidence=(
            f"{does} in {len(found.steps):,} of {count(found.num_steps, 'step')}{_when(found)}, "
            f"{_lengths(found)}{waits}: this takes {lost}{shown}"
        ),
        advice=advice or host_advice(term, timeline, ranks),
    )


def _site(timeline: Timeline, term: str, found: Stops, ranks: tuple[int, ...]) -> str:
    """Say where the only rank of the finding stood, if its stacks were sampled while it did that work."""
    line = stood_at(timeline, ranks[0], term, found.steps) if len(ranks) == 1 else ""
    return f"; its stacks show it in {line}" if line else ""


def _lengths(found: Stops) -> str:
    """Return the mean length; of one that is UNEVEN, its step too."""
    others = len(found.steps) - 1
    if not others or found.longest_ns < UNEVEN * found.mean_ns:
        return f"{duration(round(found.mean_ns))} each"
    rest_ns = (found.mean_ns * len(found.steps) - found.longest_ns) / others
    return (
        f"{duration(round(found.longest_ns))} in step {found.longest_step}, else {duration(round(rest_ns))} on average"
    )


def _when(found: Stops) -> str:
    if found.period_steps is not None:
        return f" (every {found.period_steps})"
    return f" ({', '.join(map(str, found.steps))})" if len(found.steps) <= SHOWN_STEPS else ""
