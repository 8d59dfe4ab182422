"""What every rank had to compute in a step: by its own count, or by what the training told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from traincope.analysis.counted import CountedFlops, counted_flops
from traincope.analysis.experts import logged_means
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
TOLD = "as the training told"
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

        And what the training logs as such (`run.log(redundant_flops=...)`), as padding; where it told its model
        FLOPs, products that several ranks repeat: counts take what ran for what was needed.
        """
        if self.executed is None or self.recomputed is None:
            return None
        return {
            dtype: self.executed.get(dtype, 0.0) - self.recomputed.get(dtype, 0.0) - self.model.get(dtype, 0.0)
            for dtype in sorted({*self.executed, *self.model})
        }


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


def job_work(timeline: Timeline) -> JobWork:
    """`run.describe(model_flops_per_step=...)` wins for the model's FLOPs; what was executed is counted."""
    settings = timeline.run.info.settings
    counted = {rank.rank: found for rank in timeline.ranks if (found := counted_flops(rank)) is not None}
    known = (each.coverage_ratio for each in counted.values())
    coverage = min((ratio for ratio in known if ratio is not None), default=None)
    reason = _why_uncounted(timeline, counted, coverage)
    vain = {rank.rank: logged_means(rank).get(REDUNDANT, 0.0) for rank in timeline.ranks}
    ranks = {rank: _counted(each, vain=vain[rank]) for rank, each in counted.items()} if reason is None else {}
    told = positive(settings.get("model_flops_per_step"))
    if told is None:
        return JobWork(ranks=ranks, convention=None if reason else COUNTED, reason=reason, coverage_ratio=coverage)
    dtype = str(settings.get("flops_dtype", TOLD_DTYPE))
    share = told / timeline.run.info.world_size
    ranks = {rank.rank: _told(share, ranks.get(rank.rank), dtype=dtype) for rank in timeline.ranks}
    return JobWork(ranks=ranks, convention=TOLD, coverage_ratio=coverage)


def positive(value: object) -> float | None:
    """A setting as a number, if it is a positive one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _counted(flops: CountedFlops, *, vain: float) -> RankWork:
    """`vain`: of what was counted, the FLOPs that no token needed."""
    return RankWork(
        model=_without(vain, flops.model(causal_half=True)),
        paper=_without(vain, flops.model(causal_half=False)),
        executed=flops.executed(),
        recomputed=flops.recomputed(),
    )


def _without(vain: float, model: Mapping[str, float]) -> Mapping[str, float]:
    """Taken from the dtype that multiplies most: a router's few products may be in another."""
    if not vain or not model:
        return model
    most = max(model, key=lambda dtype: model[dtype])
    return {**model, most: max(model[most] - vain, 0.0)}


def _told(flops: float, counted: RankWork | None, *, dtype: str) -> RankWork:
    """A rank's share of what was told, in the dtypes that were counted, in their proportion."""
    total = sum(counted.model.values()) if counted is not None else 0.0
    if counted is None or not total:
        return RankWork(model={dtype: flops})
    model = {name: flops * count / total for name, count in counted.model.items()}
    return replace(counted, model=model, paper=None)


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
