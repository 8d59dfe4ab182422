"""Finding about pipeline idle time: schedule, imbalance, or jitter and its cause."""

from dataclasses import dataclass, replace

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.pipeline.bubble import Bubble, StageBubble
from traincope.analysis.replaying.prices import Gain, Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.stragglers.roots import Root
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, Weighted, percent, priced
from traincope.analysis.verdict.losses.host_losses import host_advice
from traincope.plan.pipeline.bubble import bubble_over_ideal, bubble_ratio
from traincope.plan.pipeline.orders import SCHEDULES, Shape
from traincope.timeline import Timeline
from traincope.units import duration, numbers

AGREES = 0.03
"""Largest difference at which the replayed schedule confirms the formula."""
MIN_EXPLAINED = 0.5
"""Share of jitter that a cause must explain to be named. Also the share of the largest root that another root needs."""

SLOWER = 1.25
"""A stage whose ranks are named works this many times as long as the others. One that recomputes all activations works
4/3 as long: a forward more, where a backward takes two.
"""

MORE = "Use more microbatches, or a schedule with a smaller bubble."

DELAYS = {
    "data_wait": ("waited for data", "Give the DataLoader more workers or a deeper prefetch"),
    "gc": (
        "collected garbage",
        "Call gc.disable(), and gc.collect() between steps on all ranks at once",
    ),
    "checkpoint_stall": ("saved or loaded a checkpoint", ""),
    "compile": ("compiled", ""),
}
"""Term that delays a rank -> (what the rank did, advice; empty for that of `host_advice`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Main cause of the jitter."""

    term: str
    ranks: tuple[int, ...]
    share: float
    """Share of the pipeline's step time, mean over all its ranks."""
    peer_share: float
    """Share of the step time of the ranks that waited: what they would save."""

    @property
    def rank_names(self) -> str:
        return f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"

    @property
    def consequence(self) -> str:
        return f"during this the other stages of the pipeline idle {percent(self.peer_share)} of step time"


def find_cause(ledger: Ledger, bubble: Bubble | None, roots: tuple[Root, ...]) -> Cause | None:
    """The kind of delay that explains most jitter, with its ranks; None if most jitter is unexplained."""
    wall_ns = 0 if bubble is None else sum(stage.wall_ns for stage in bubble.stages)
    if bubble is None or not roots or not wall_ns:
        return None
    jitter = bubble.parts["jitter"]
    by_term = {term: [root for root in roots if root.term == term] for term in {root.term for root in roots}}
    largest_group = max(by_term.values(), key=lambda group: (sum(root.jitter_ns for root in group), group[0].term))
    explained = sum(root.jitter_ns for root in largest_group)
    share = min(explained / wall_ns, jitter)
    if share <= 0 or share < MIN_EXPLAINED * jitter:
        return None
    peers = {peer for root in largest_group for peer in root.peers}
    peers_ns = sum(rank.total_wall_ns for rank in ledger.ranks if rank.rank in peers)
    return Cause(
        term=largest_group[0].term,
        ranks=tuple(
            sorted(root.rank for root in largest_group if root.jitter_ns >= MIN_EXPLAINED * largest_group[0].jitter_ns)
        ),
        share=share,
        peer_share=explained / peers_ns,
    )


def idle_findings(
    timeline: Timeline,
    ledger: Ledger,
    bubble: Bubble | None,
    cause: Cause | None,
    prices: Prices,
    *,
    reported: bool,
) -> Weighted:
    """At most one finding. A cause that another finding has `reported` is not counted again.

    A slow stage is named where stages with equal work gain more than another schedule.
    """
    if bubble is None:
        return
    parts = bubble.parts
    if cause is not None and reported:
        parts["jitter"] -= cause.share
    total = sum(parts.values())
    if total < MIN_SHARE:
        return
    largest = max(parts, key=lambda name: parts[name])
    root = cause if largest == "jitter" and not reported else None
    if largest == "jitter" and root is None and parts["imbalance"] >= max(MIN_EXPLAINED * parts["jitter"], MIN_SHARE):
        largest = "imbalance"  # its cause is known
    if largest == "schedule" and parts["imbalance"] >= MIN_SHARE and _slow_stage(bubble) is not None:
        _, rescheduled = _another_schedule(bubble, parts["schedule"], prices)
        _, even = _evened(bubble, ledger, prices, share=0.0)
        largest = "imbalance" if even.ratio > (rescheduled or 0.0) else largest
    slow = _slow_stage(bubble) if largest == "imbalance" else None
    finding = Finding(
        kind=FindingKind.PIPELINE_BUBBLE,
        ranks=root.ranks if root else slow.ranks if slow else (),
        confidence=_confidence(bubble),
        evidence=_evidence(parts, bubble, cause, reported=reported)
        + ("" if slow is None else _works(slow, bubble) + _recomputes(slow, ledger)),
        advice="",
    )
    yield total, _advised(finding, largest, parts[largest], bubble, root, timeline, ledger, prices)


def _evidence(parts: dict[str, float], bubble: Bubble, cause: Cause | None, *, reported: bool) -> str:
    excluded = f", not counting its wait for {cause.rank_names}" if cause and reported else ""
    root = (
        f", {percent(cause.share)} while {cause.rank_names} {DELAYS[cause.term][0]}" if cause and not reported else ""
    )
    theory = "" if bubble.theory_ratio is None else f"; theory for {_layout(bubble)} is {percent(bubble.theory_ratio)}"
    return (
        f"the pipeline idles {percent(sum(parts.values()))} of step time{excluded}: "
        f"{percent(parts['schedule'])} schedule, "
        f"{percent(parts['imbalance'])} imbalance, {percent(parts['jitter'])} jitter{root}{theory}"
    )


def _slow_stage(bubble: Bubble) -> StageBubble | None:
    """The stage that works much longer than the others do on average; None without one."""
    slow = max(bubble.stages, key=lambda stage: stage.work_ns)
    return slow if len(bubble.stages) > 1 and slow.work_ns >= SLOWER * _others_ns(slow, bubble) > 0 else None


def _others_ns(slow: StageBubble, bubble: Bubble) -> float:
    return sum(stage.work_ns for stage in bubble.stages if stage is not slow) / (len(bubble.stages) - 1)


def _works(slow: StageBubble, bubble: Bubble) -> str:
    others = f"the other{'s' if len(bubble.stages) > 2 else ''} {duration(_others_ns(slow, bubble))}"
    mean = " on average" if len(bubble.stages) > 2 else ""
    what = f"{numbers((slow.stage, *slow.others), 'stage')} ({numbers(slow.ranks, 'rank')})"
    works = "work" if slow.others else "works"
    return f"; {what} {works} {duration(slow.work_ns)} per microbatch, {others}{mean}"


def _recomputes(slow: StageBubble, ledger: Ledger) -> str:
    """What the slow stage recomputes, in words; empty if the others do so as much."""
    shares = _recomputed(slow, ledger)
    if shares is None:
        return ""
    more, less = map(percent, shares)
    return f"; it recomputes activations for {more} of its steps, the others for {less}"


def _recomputed(slow: StageBubble, ledger: Ledger) -> tuple[float, float] | None:
    """Shares of step time in which the slow stage and the others recompute; None if it hardly does so more."""
    of, others = (
        [rank for rank in ledger.ranks if (rank.rank in slow.ranks) is chosen and rank.total_wall_ns]
        for chosen in (True, False)
    )
    if not of or not others:
        return None
    more, less = (
        sum(rank.total("recompute") or 0 for rank in some) / sum(rank.total_wall_ns for rank in some)
        for some in (of, others)
    )
    return (more, less) if more - less >= MIN_SHARE else None


def _layout(bubble: Bubble) -> str:
    spread = "" if bubble.chunks == 1 else f" on {bubble.shape.ranks} ranks"
    return f"{bubble.schedule}, {bubble.num_stages} stages{spread}, {bubble.num_microbatches} microbatches"


def _confidence(bubble: Bubble) -> str:
    """High if formula and replay agree on the schedule and the stages share a clock."""
    if bubble.theory_ratio is None or bubble.replay_ratio is None or not bubble.one_clock:
        return MEDIUM
    return HIGH if abs(bubble.theory_ratio - bubble.replay_ratio) <= AGREES else MEDIUM


def _advised(
    finding: Finding,
    largest: str,
    share: float,
    bubble: Bubble,
    root: Cause | None,
    timeline: Timeline,
    ledger: Ledger,
    prices: Prices,
) -> Finding:
    if root is not None:
        in_term = DELAYS[root.term][1] or host_advice(root.term, timeline, root.ranks).removesuffix(".")
        advice = f"{in_term}, because the pipeline waits for {root.rank_names}"
        removed = Factors({(rank, root.term): 0.0 for rank in root.ranks})
        return priced(replace(finding, advice=advice), prices.gain(removed, share=root.peer_share))
    if largest == "imbalance":
        advice, gain = _evened(bubble, ledger, prices, share=share)
        return priced(replace(finding, advice=advice), gain)
    if largest == "jitter":
        return replace(
            finding,
            advice=(
                "Open the timeline (traincope view RUN) at the longest gaps: schedule and stage times do not explain "
                "them."
            ),
        )
    advice, ratio = _another_schedule(bubble, share, prices)
    return replace(finding, advice=advice, estimated_gain_ratio=ratio)


def _evened(bubble: Bubble, ledger: Ledger, prices: Prices, *, share: float) -> tuple[str, Gain]:
    """Advice that makes the stages equal, with its gain: `share` where the records do not show it."""
    stage = _slow_stage(bubble) or max(bubble.stages, key=lambda stage: -stage.imbalance_ns)
    balanced = prices.balanced()
    even = Gain(ratio=share if balanced is None else balanced)
    if _recomputed(stage, ledger) is None:
        return f"Move layers away from stage {stage.slowest}, which computes longest", even
    removed = Factors({(rank, "recompute"): 0.0 for rank in stage.ranks})
    less = prices.gain(removed, share=even.ratio, at_most=True)
    advice = f"Recompute less on stage {stage.slowest}, which computes longest, or move layers away from it"
    return advice, less if less.ratio > even.ratio else even


def _another_schedule(bubble: Bubble, share: float, prices: Prices) -> tuple[str, float | None]:
    """Advise more microbatches, unless the schedule gains nothing from them."""
    shape = bubble.shape
    if bubble.schedule == "naive":
        name, better, change = "1f1b", shape, "Use the schedule 1f1b"
    else:
        better = Shape(ranks=shape.ranks, microbatches=2 * shape.microbatches, chunks=shape.chunks)
        name, change = bubble.schedule, f"Use {better.microbatches} microbatches"
    if bubble.schedule not in SCHEDULES:
        return MORE, None
    current, reduced = bubble_over_ideal(bubble.schedule, shape), bubble_over_ideal(name, better)
    theory = bubble_ratio(name, better)
    if not current or reduced is None or theory is None:
        return MORE, None
    before = bubble_ratio(bubble.schedule, shape)
    falls = f"from {percent(before)} to {percent(theory)}" if before is not None else f"to {percent(theory)}"
    gain = prices.rescheduled(name, better)
    gain = share * (1 - reduced / current) if gain is None else gain
    return f"{change}: the schedule's bubble falls {falls}.", gain
