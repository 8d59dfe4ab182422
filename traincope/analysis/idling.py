"""What is to be said of pipeline idle time: schedule, uneven stages, or jitter and where it comes from."""

from dataclasses import dataclass

from traincope.analysis.bubble import Bubble
from traincope.analysis.findings import HIGH, MEDIUM, WORTH_SAYING, Finding, FindingKind, Weighted, percent
from traincope.analysis.ledger import Ledger
from traincope.analysis.roots import Root
from traincope.plan.bubble import bubble_over_ideal, bubble_ratio
from traincope.plan.orders import SCHEDULES, Shape

AGREES = 0.03
"""The replayed schedule confirms the formula when they differ by no more than this."""
MOST = 0.5
"""Share of jitter that a cause must explain to be named, and of the largest root that another of its kind must be."""

MORE = "use more microbatches, or a schedule with less idle time"

DELAYS = {
    "data_wait": ("waited for data", "give its DataLoader more workers or a deeper prefetch"),
    "gc": ("collected garbage", "call gc.disable() and collect between steps, on all ranks at once"),
    "checkpoint_stall": ("wrote a checkpoint", "save asynchronously, or less often"),
    "compile": ("compiled", "keep shapes constant, so that nothing is compiled twice"),
}
"""Term that delays a rank -> (what it did, what to do)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What most of the jitter comes from."""

    term: str
    ranks: tuple[int, ...]
    share: float
    """Of the time of the pipeline's steps, mean over all its ranks."""
    peer_share: float
    """Of the step time of those that waited: what they would save."""

    @property
    def who(self) -> str:
        return f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"

    @property
    def meanwhile(self) -> str:
        return f"the other stages of the pipeline idle {percent(self.peer_share)} of a step meanwhile"


def find_cause(ledger: Ledger, bubble: Bubble | None, roots: tuple[Root, ...]) -> Cause | None:
    """The kind of delay that explains most jitter, with the ranks that had it; None where most is unexplained."""
    wall_ns = 0 if bubble is None else sum(stage.wall_ns for stage in bubble.stages)
    if bubble is None or not roots or not wall_ns:
        return None
    jitter = bubble.parts["jitter"]
    by_term = {term: [root for root in roots if root.term == term] for term in {root.term for root in roots}}
    most = max(by_term.values(), key=lambda alike: (sum(root.jitter_ns for root in alike), alike[0].term))
    explained = sum(root.jitter_ns for root in most)
    share = min(explained / wall_ns, jitter)
    if share <= 0 or share < MOST * jitter:
        return None
    peers = {peer for root in most for peer in root.peers}
    peers_ns = sum(rank.total_wall_ns for rank in ledger.ranks if rank.rank in peers)
    return Cause(
        term=most[0].term,
        ranks=tuple(sorted(root.rank for root in most if root.jitter_ns >= MOST * most[0].jitter_ns)),
        share=share,
        peer_share=explained / peers_ns,
    )


def idling(bubble: Bubble | None, cause: Cause | None, *, told: bool) -> Weighted:
    """At most one finding. A cause that is `told` by a finding of its own is left out of this one."""
    if bubble is None:
        return
    parts = bubble.parts
    if cause is not None and told:
        parts["jitter"] -= cause.share
    total = sum(parts.values())
    if total < WORTH_SAYING:
        return
    largest = max(parts, key=lambda name: parts[name])
    root = cause if largest == "jitter" and not told else None
    advice, gain = _advice(largest, parts[largest], bubble, root)
    yield (
        total,
        Finding(
            kind=FindingKind.PIPELINE_BUBBLE,
            ranks=root.ranks if root else (),
            confidence=_confidence(bubble),
            evidence=_evidence(parts, bubble, cause, told=told),
            advice=advice,
            estimated_gain_ratio=gain,
        ),
    )


def _evidence(parts: dict[str, float], bubble: Bubble, cause: Cause | None, *, told: bool) -> str:
    beside = f" beside its waiting for {cause.who}" if cause and told else ""
    root = f", {percent(cause.share)} while {cause.who} {DELAYS[cause.term][0]}" if cause and not told else ""
    theory = "" if bubble.theory_ratio is None else f"; theory for {_layout(bubble)} is {percent(bubble.theory_ratio)}"
    return (
        f"the pipeline idles {percent(sum(parts.values()))} of a step{beside}: {percent(parts['schedule'])} schedule, "
        f"{percent(parts['imbalance'])} uneven stages, {percent(parts['jitter'])} jitter{root}{theory}"
    )


def _layout(bubble: Bubble) -> str:
    spread = "" if bubble.chunks == 1 else f" on {bubble.shape.ranks} ranks"
    return f"{bubble.schedule}, {bubble.num_stages} stages{spread}, {bubble.num_microbatches} microbatches"


def _confidence(bubble: Bubble) -> str:
    """High where formula and replay say the same of the schedule, and the stages' times compare."""
    if bubble.theory_ratio is None or bubble.replay_ratio is None or not bubble.one_clock:
        return MEDIUM
    return HIGH if abs(bubble.theory_ratio - bubble.replay_ratio) <= AGREES else MEDIUM


def _advice(largest: str, share: float, bubble: Bubble, root: Cause | None) -> tuple[str, float | None]:
    if root is not None:
        return f"{DELAYS[root.term][1]}: the pipeline waits for {root.who}", root.peer_share
    if largest == "imbalance":
        slow = max(bubble.stages, key=lambda stage: -stage.imbalance_ns).slowest
        return f"even out the stages: stage {slow} computes longest, move layers away from it", share
    if largest == "jitter":
        return (
            "neither schedule nor stage times explain most of it: look for late ranks, noisy hosts or slow launches",
            None,
        )
    return _another_schedule(bubble, share)


def _another_schedule(bubble: Bubble, share: float) -> tuple[str, float | None]:
    """More microbatches, unless the schedule gains nothing by them."""
    shape = bubble.shape
    if bubble.schedule == "naive":
        name, better, what = "1f1b", shape, "in the order of 1f1b the pipeline"
    else:
        better = Shape(ranks=shape.ranks, microbatches=2 * shape.microbatches, chunks=shape.chunks)
        name, what = bubble.schedule, f"with {better.microbatches} microbatches the schedule"
    if bubble.schedule not in SCHEDULES:
        return MORE, None
    now, then = bubble_over_ideal(bubble.schedule, shape), bubble_over_ideal(name, better)
    theory = bubble_ratio(name, better)
    if not now or then is None or theory is None:
        return MORE, None
    return f"{what} idles {percent(theory)} by theory", share * (1 - then / now)
