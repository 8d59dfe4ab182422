"""What every rank had to compute in a step: by its own count, or by what the training told."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from traincope.analysis.amounts import counted_steps, growth, whole_job
from traincope.analysis.counted import CountedFlops, counted_flops
from traincope.analysis.experts import expert_loads, logged_means, rows_then
from traincope.analysis.told import ToldFlops, positive, told_flops
from traincope.timeline import Timeline

ENOUGH_COVERAGE = 0.98
PROBE = "flops"
ON = "on"
OFF = "off: "
REMEDY = "tell run.describe(model_flops_per_step=...)"
"""Also in the state of a probe that takes its counts back."""
NEVER_COUNTED = "no FLOPs are recorded"
NO_PRODUCT = "the counted step ran no matrix product of torch's"
TOO_SHORT = "no step was counted, the run was over within its first two"
COUNTED = "as counted, causal attention halved"
REDUNDANT = "redundant_flops"
"""What a training logs of its products that no token needed, a rank and step: padding."""
TOLD_DTYPE = "bfloat16"
"""What a training multiplies in that tells its FLOPs, where none was counted and it told no `flops_dtype`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """FLOPs of one rank in one step, by dtype; None is what is not known."""

    model: Mapping[str, float]
    """What the mathematics needs, causal attention halved."""
    paper: Mapping[str, float] | None = None
    """The same, not halved."""
    executed: Mapping[str, float] | None = None
    recomputed: Mapping[str, float] | None = None
    """Of the executed, the forwards that the backward ran again."""

    @property
    def redundant(self) -> Mapping[str, float] | None:
        """Executed beyond model and recomputation: what fused attention computes again in its kernel.

        And, where the training told its model's FLOPs, or how they follow from its tokens, padding and products that
        several ranks repeat. Where it told neither, counts take what ran for what was needed, but for what it logs as
        redundant (`run.log(redundant_flops=...)`). None also where the model was told to need more than was counted:
        then the counts miss kernels, or what was told is wrong, and nothing tells what was in vain.
        """
        if self.executed is None or self.recomputed is None:
            return None
        beyond = {
            dtype: self.executed.get(dtype, 0.0) - self.recomputed.get(dtype, 0.0) - self.model.get(dtype, 0.0)
            for dtype in sorted({*self.executed, *self.model})
        }
        missed = -sum(beyond.values())
        return None if missed > (1 - ENOUGH_COVERAGE) * sum(self.model.values()) else beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """All ranks', or why it is not known."""

    ranks: Mapping[int, RankWork]
    convention: str | None = None
    reason: str | None = None
    """Why `ranks` is empty."""
    coverage_ratio: float | None = None
    """The least of the ranks'."""

    @property
    def model(self) -> float | None:
        return self._sum(lambda rank: rank.model)

    @property
    def executed(self) -> float | None:
        return self._sum(lambda rank: rank.executed)

    @property
    def recomputed(self) -> float | None:
        return self._sum(lambda rank: rank.recomputed)

    @property
    def redundant(self) -> float | None:
        return self._sum(lambda rank: rank.redundant)

    def _sum(self, part: Callable[[RankWork], Mapping[str, float] | None]) -> float | None:
        """Over ranks and dtypes; None where a rank's is not known."""
        known = [flops for rank in self.ranks.values() if (flops := part(rank)) is not None]
        return sum(sum(flops.values()) for flops in known) if known and len(known) == len(self.ranks) else None


def job_work(timeline: Timeline, *, steps: Collection[int]) -> JobWork:
    """Of one of `steps`, in the mean. What was told of the model wins; what was executed is counted."""
    larger = growth(timeline, steps=steps)
    found = {rank.rank: counted_flops(rank) for rank in timeline.ranks}
    counted = {rank: each.grown(larger) for rank, each in found.items() if each is not None}
    known = (each.coverage_ratio for each in counted.values())
    coverage = min((ratio for ratio in known if ratio is not None), default=None)
    reason = _why_uncounted(timeline, counted, coverage)
    vain = {rank.rank: logged_means(rank).get(REDUNDANT, 0.0) for rank in timeline.ranks}
    ranks = {rank: _counted(each, vain=vain[rank]) for rank, each in counted.items()} if reason is None else {}
    ranks = _with_usual_rows(timeline, ranks)
    told = told_flops(timeline, steps=steps)
    if told is None:
        return JobWork(ranks=ranks, convention=None if reason else COUNTED, reason=reason, coverage_ratio=coverage)
    if isinstance(told, str):
        return JobWork(ranks={}, reason=told, coverage_ratio=coverage)
    return JobWork(ranks=_told(timeline, told, ranks), convention=told.convention, coverage_ratio=coverage)


def _counted(flops: CountedFlops, *, vain: float) -> RankWork:
    """`vain`: of what was counted, the FLOPs that no token needed."""
    return RankWork(
        model=_without(vain, flops.model(causal_half=True)),
        paper=_without(vain, flops.model(causal_half=False)),
        executed=flops.executed(),
        recomputed=flops.recomputed(),
    )


def _with_usual_rows(timeline: Timeline, counted: dict[int, RankWork]) -> dict[int, RankWork]:
    """Experts multiply other numbers of rows from step to step, where a capacity drops some and leaves none empty.

    What they multiplied more, or less, in the mean than in the counted steps, by what the training told of a row.
    """
    rate, loads = positive(timeline.run.info.settings.get("flops_per_routed_token")), expert_loads(timeline)
    then = rows_then(timeline, steps={step for rank in timeline.ranks for step in counted_steps(rank)})
    executed = sum(sum((work.executed or {}).values()) for work in counted.values())
    if not (rate and loads and then and executed) or math.isclose(usual := loads.rows + loads.padding, then):
        return counted
    larger = 1 + rate * (usual - then) / executed
    return {
        rank: replace(work, executed={dtype: larger * flops for dtype, flops in (work.executed or {}).items()})
        for rank, work in counted.items()
    }


def _without(vain: float, model: Mapping[str, float]) -> Mapping[str, float]:
    """Taken from the dtype that multiplies most: a router's few products may be in another."""
    if not vain or not model:
        return model
    most = max(model, key=lambda dtype: model[dtype])
    return {**model, most: max(model[most] - vain, 0.0)}


def _told(timeline: Timeline, told: ToldFlops, counted: Mapping[int, RankWork]) -> dict[int, RankWork]:
    """Shared out by rank and dtype as what was counted is; where nothing was, every rank has the same.

    Ranks that are not seen have as much as those that are.
    """
    total = sum(sum(work.model.values()) for work in counted.values()) * whole_job(timeline)
    if not total:
        dtype = str(timeline.run.info.settings.get("flops_dtype", TOLD_DTYPE))
        share = {dtype: 1 / timeline.run.info.world_size}
        return {rank.rank: _with_model(RankWork(model={}), told, share) for rank in timeline.ranks}
    return {
        rank: _with_model(work, told, {dtype: count / total for dtype, count in work.model.items()})
        for rank, work in counted.items()
    }


def _with_model(work: RankWork, told: ToldFlops, shares: Mapping[str, float]) -> RankWork:
    model, paper = (
        None if flops is None else {dtype: share * flops for dtype, share in shares.items()}
        for flops in (told.model, told.paper)
    )
    return replace(work, model=model or {}, paper=paper)


def _why_uncounted(timeline: Timeline, counted: Mapping[int, CountedFlops], coverage: float | None) -> str | None:
    """What keeps the counts from standing for the whole job."""
    states = {rank.rank: rank.info.probes.get(PROBE) for rank in timeline.run.ranks}
    for rank, state in states.items():
        withdrawn = state is not None and REMEDY in state
        if state is not None and state != ON and (withdrawn or rank not in counted):
            return f"{state.removeprefix(OFF)} (rank {rank})"
    if timeline.run.missing:
        return f"rank {timeline.run.missing[0]} left no records, so its FLOPs are missing"
    uncounted = [rank for rank in states if rank not in counted]
    if uncounted:
        return NEVER_COUNTED if states[uncounted[0]] is None else _why_nothing(timeline, uncounted[0])
    if coverage is not None and coverage < ENOUGH_COVERAGE:
        return (
            f"modules with {1 - coverage:.0%} of the parameters' FLOPs multiply in ways that are not counted; {REMEDY}"
        )
    return None


def _why_nothing(timeline: Timeline, rank: int) -> str:
    """The second step is counted once a third has begun."""
    numbers = [step.number for each in timeline.ranks if each.rank == rank for step in each.steps]
    return f"{NO_PRODUCT}; {REMEDY}" if max(numbers, default=0) > 1 else TOO_SHORT
