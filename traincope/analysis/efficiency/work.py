"""FLOPs of every rank in a step: counted by the recorder, or declared by the training."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from traincope.analysis.efficiency.counted_flops import CountedFlops, counted_flops
from traincope.analysis.efficiency.declared_flops import (
    DeclaredFlops,
    configured_flops,
    counted_steps,
    declared_flops,
    job_scale,
    positive,
    step_scale,
)
from traincope.analysis.efficiency.experts import ExpertLoads, logged_means, mean_rows_multiplied
from traincope.timeline import Timeline

ENOUGH_COVERAGE = 0.98
PROBE = "flops"
ON = "on"
OFF = "off: "
DECLARE = "run.describe(model_flops_per_step=...)"
"""Call that a user adds. The state of a probe that withdraws its counts contains it."""
REMEDY = f"call {DECLARE}"
NEVER_COUNTED = "no FLOPs are recorded"
NO_PRODUCT = "the counted step ran no matrix product of torch's"
TOO_SHORT = "no step was counted: the run ended within its first two steps"
COUNTED = "as counted, causal attention halved"
BY_GRAPHS = "compiled code by the graphs that torch.compile captured"
"""Part of the state of a probe that counted compiled code, and of the convention."""
BY_MODULES = "{:.0f} % of them by the weights and inputs of modules whose kernels cannot be counted"
BY_SHAPES = "on the traced ranks, by their shapes, causal attention halved"
OF_TRACED = "on the traced ranks, {}"
"""Convention of declared FLOPs of an imported run."""
NO_DTYPE = "the dtype of its products is unknown; profile with record_shapes=True, or give --dtype to traincope import"
REDUNDANT = "redundant_flops"
"""Name under which a training logs FLOPs of padding, per rank and step."""
DEFAULT_DTYPE = "bfloat16"
"""Dtype of declared FLOPs if none was counted and the training declares no `flops_dtype`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """FLOPs of one rank in one step, by dtype; None if unknown."""

    model: Mapping[str, float]
    """FLOPs of the mathematics, causal attention halved."""
    paper: Mapping[str, float] | None = None
    """The same, causal attention in full."""
    executed: Mapping[str, float] | None = None
    recomputed: Mapping[str, float] | None = None
    """Executed FLOPs of forward work that backward repeated."""

    @property
    def redundant(self) -> Mapping[str, float] | None:
        """Executed FLOPs beyond model and recomputation, such as what fused attention computes again in its kernel.

        If the training declares its model's FLOPs or rates, padding and products that several ranks repeat count too.
        Otherwise all that ran counts as needed, except what the training logs as redundant
        (`run.log(redundant_flops=...)`). None also if the model declares more FLOPs than were counted: then the counts
        miss kernels or the declaration is wrong.
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
class ShapesEvidence:
    """Limits of the FLOPs that the shapes in imported traces give."""

    executed_reason: str | None = None
    """Reason why the executed FLOPs are unknown."""
    model_reason: str | None = None
    """Reason why the model's share of the executed FLOPs is unknown."""
    rank_reason: str | None = None
    """Reason why a rank's share of the model's declared FLOPs is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """FLOPs of all ranks, or the reason why they are unknown."""

    ranks: Mapping[int, RankWork]
    convention: str | None = None
    reason: str | None = None
    """Reason why `ranks` is empty."""
    model_reason: str | None = None
    """Reason why only the executed FLOPs are known. `RankWork.model` then contains them."""
    coverage_ratio: float | None = None
    """Counted FLOPs as a share of those that the parameters imply, lowest of all ranks; below 0.98 MFU is unknown."""

    @property
    def model(self) -> float | None:
        """Model FLOPs of the whole job in one step."""
        return None if self.model_reason else self._sum(lambda rank: rank.model)

    @property
    def executed(self) -> float | None:
        return self._sum(lambda rank: rank.executed)

    @property
    def recomputed(self) -> float | None:
        return self._sum(lambda rank: rank.recomputed)

    @property
    def redundant(self) -> float | None:
        """Executed FLOPs beyond model and recomputation: scores that fused attention repeats in its backward.

        If the training declared its model FLOPs, or their rates per token, also padding and products that several ranks
        repeat; otherwise the FLOPs that it logs as redundant.
        """
        return self._sum(lambda rank: rank.redundant)

    def _sum(self, part: Callable[[RankWork], Mapping[str, float] | None]) -> float | None:
        """Sum over ranks and dtypes; None if one rank's FLOPs are unknown."""
        known = [flops for rank in self.ranks.values() if (flops := part(rank)) is not None]
        return sum(sum(flops.values()) for flops in known) if known and len(known) == len(self.ranks) else None


def job_work(
    timeline: Timeline, *, steps: Collection[int], experts: ExpertLoads | None, shapes: ShapesEvidence | None = None
) -> JobWork:
    """Mean FLOPs of one of `steps`. Declared model FLOPs win over counted ones; executed FLOPs are always counted.

    If nothing is declared and the counts do not represent the job, the rates of the model's configuration decide.

    `shapes`: evidence of an imported run, None for a recorded one.
    """
    larger = step_scale(timeline, steps=steps)
    by_rank = {rank.rank: counted_flops(rank) for rank in timeline.ranks}
    counted = {rank: each.scaled(larger) for rank, each in by_rank.items() if each is not None}
    known = (each.coverage_ratio for each in counted.values())
    coverage = min((ratio for ratio in known if ratio is not None), default=None)
    reason = _why_uncounted(timeline, counted, coverage) if shapes is None else shapes.executed_reason
    model_reason = None if shapes is None or reason else shapes.model_reason
    redundant_flops = {rank.rank: logged_means(rank).get(REDUNDANT, 0.0) for rank in timeline.ranks}
    by_graphs = any(BY_GRAPHS in rank.info.probes.get(PROBE, "") for rank in timeline.run.ranks)
    by_modules = max((each.module_ratio for each in counted.values()), default=0.0)
    known_kernels = not (by_graphs or by_modules)
    ranks = (
        {
            rank: _counted(each, redundant_flops=redundant_flops[rank], known_kernels=known_kernels)
            for rank, each in counted.items()
        }
        if reason is None
        else {}
    )
    if model_reason:
        ranks = {rank: RankWork(model=work.executed or {}, executed=work.executed) for rank, work in ranks.items()}
    ranks = _with_usual_rows(timeline, ranks, experts)
    declared = declared_flops(timeline, steps=steps, experts=experts)
    if declared is None and reason is not None and shapes is None:
        declared = configured_flops(timeline, steps=steps, experts=experts)
    if declared is None:
        convention = _counted_how(by_graphs, by_modules) if shapes is None else BY_SHAPES
        return JobWork(
            ranks=ranks,
            convention=None if reason or model_reason else convention,
            reason=reason,
            model_reason=model_reason,
            coverage_ratio=coverage,
        )
    if shapes is not None and not isinstance(declared, str):
        has_dtype = bool(ranks) or "flops_dtype" in timeline.run.info.settings
        declared = shapes.rank_reason or (declared if has_dtype else NO_DTYPE)
    if isinstance(declared, str):
        return JobWork(ranks={}, reason=declared, coverage_ratio=coverage)
    return JobWork(
        ranks=_share_declared(timeline, declared, ranks),
        convention=declared.convention if shapes is None else OF_TRACED.format(declared.convention),
        coverage_ratio=coverage,
    )


def _counted_how(by_graphs: bool, by_modules: float) -> str:
    """Convention of counted FLOPs, with the sources of those that no kernel of torch's shows."""
    sources = (BY_GRAPHS if by_graphs else "", BY_MODULES.format(100 * by_modules) if by_modules else "")
    how, halved = COUNTED.split(", ")
    return ", ".join((how, *filter(None, sources), halved))


def _counted(flops: CountedFlops, *, redundant_flops: float, known_kernels: bool) -> RankWork:
    """Work by counts. `redundant_flops`: counted FLOPs that no token needed.

    `known_kernels`: the recorder saw all products. Otherwise only the mathematics is known, not what ran again.
    """
    return RankWork(
        model=_without(redundant_flops, flops.model(causal_half=True)),
        paper=_without(redundant_flops, flops.model(causal_half=False)),
        executed=flops.executed() if known_kernels else None,
        recomputed=flops.recomputed() if known_kernels else None,
    )


def _with_usual_rows(
    timeline: Timeline, counted: dict[int, RankWork], experts: ExpertLoads | None
) -> dict[int, RankWork]:
    """Scale executed FLOPs from the rows of the counted steps to the mean rows of all steps.

    Experts multiply a different number of rows in each step if a capacity drops some and fills none up. The declared
    FLOPs per row convert the difference.
    """
    rate = positive(timeline.run.info.settings.get("flops_per_routed_token"))
    counted_rows = mean_rows_multiplied(
        timeline, steps={step for rank in timeline.ranks for step in counted_steps(rank)}
    )
    executed = sum(sum((work.executed or {}).values()) for work in counted.values())
    if not (rate and experts and counted_rows and executed) or math.isclose(
        mean_rows := experts.rows + experts.padding, counted_rows
    ):
        return counted
    larger = 1 + rate * (mean_rows - counted_rows) / executed
    return {
        rank: replace(work, executed={dtype: larger * flops for dtype, flops in (work.executed or {}).items()})
        for rank, work in counted.items()
    }


def _without(redundant_flops: float, model: Mapping[str, float]) -> Mapping[str, float]:
    """Subtract redundant FLOPs from the dtype with most FLOPs: a router's few products may have another dtype."""
    if not redundant_flops or not model:
        return model
    main_dtype = max(model, key=lambda dtype: model[dtype])
    return {**model, main_dtype: max(model[main_dtype] - redundant_flops, 0.0)}


def _share_declared(
    timeline: Timeline, declared: DeclaredFlops, counted: Mapping[int, RankWork]
) -> dict[int, RankWork]:
    """Split declared FLOPs over ranks and dtypes as the counted ones; equally over ranks without counts.

    Ranks without records count as much as the others.
    """
    total = sum(sum(work.model.values()) for work in counted.values()) * job_scale(timeline)
    if not total:
        dtype = declared.dtype or str(timeline.run.info.settings.get("flops_dtype", DEFAULT_DTYPE))
        share = {dtype: 1 / timeline.run.info.world_size}
        return {rank.rank: _with_model(RankWork(model={}), declared, share) for rank in timeline.ranks}
    return {
        rank: _with_model(work, declared, {dtype: count / total for dtype, count in work.model.items()})
        for rank, work in counted.items()
    }


def _with_model(work: RankWork, declared: DeclaredFlops, shares: Mapping[str, float]) -> RankWork:
    model, paper = (
        None if flops is None else {dtype: share * flops for dtype, share in shares.items()}
        for flops in (declared.model, declared.paper)
    )
    return replace(work, model=model or {}, paper=paper)


def _why_uncounted(timeline: Timeline, counted: Mapping[int, CountedFlops], coverage: float | None) -> str | None:
    """Sentence that names what keeps the counts from representing the whole job; None if they do."""
    states = {rank.rank: rank.info.probes.get(PROBE) for rank in timeline.run.ranks}
    for rank, state in states.items():
        withdrawn = state is not None and DECLARE in state
        if state is not None and state != ON and (withdrawn or rank not in counted):
            return f"{state.removeprefix(OFF)} (rank {rank})"
    if timeline.run.missing:
        return f"rank {timeline.run.missing[0]} left no readable records, so its FLOPs are missing"
    uncounted = [rank for rank in states if rank not in counted]
    if uncounted:
        return NEVER_COUNTED if states[uncounted[0]] is None else _why_none_counted(timeline, uncounted[0])
    if coverage is not None and coverage < ENOUGH_COVERAGE:
        return f"modules with {1 - coverage:.0%} of the parameters' FLOPs use products that are not counted; {REMEDY}"
    return None


def _why_none_counted(timeline: Timeline, rank: int) -> str:
    """Reason why a rank counted no FLOPs. The second step is counted when a third has begun."""
    numbers = [step.number for each in timeline.ranks if each.rank == rank for step in each.steps]
    return f"{NO_PRODUCT}; {REMEDY}" if max(numbers, default=0) > 1 else TOO_SHORT
