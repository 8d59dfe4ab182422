"""FLOPs that the training declares, and the amounts of work that it logs per step.

`run.describe(model_flops_per_step=...)` declares them as one number. `run.describe(flops_per_token=...)` and its like
declare rates (`plan.rates`), which are multiplied by amounts: tokens, squared document lengths, routed tokens.
`run.log(step_tokens=..., step_squared_lengths=...)` logs the amounts: each rank logs its share of one step, and the
shares add up. Without logged squared lengths, documents count as equally long in every step.

A framework's callback gives rates by the model's configuration (`formula_flops_per_token`, ...), and the squared
lengths of rows as `step_formula_squared_lengths`. They are used only if the FLOPs were neither declared nor counted.
Squared lengths that the training gives win over the callback's.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.events import Kind
from traincope.plan.model.rates import Amounts, Rates
from traincope.timeline import RankTimeline, Timeline

TOKENS, SQUARED_LENGTHS, ROUTED_TOKENS = "tokens", "squared_lengths", "routed_tokens"
DECLARED = "as the training declares"
FORMULA = "by the model's formula, causal attention halved"
CONFIGURED = "by the formula of the model's configuration, causal attention halved"
FORMULA_TOKEN, FORMULA_SQUARED_LENGTH = "formula_flops_per_token", "formula_flops_per_squared_length"
FORMULA_ROUTED_TOKEN, FORMULA_DTYPE = "formula_flops_per_routed_token", "formula_flops_dtype"
"""Settings that hold the rates of the model's configuration, and the dtype of its products."""
FORMULA_SQUARED_LENGTHS = "formula_squared_lengths"
"""Amount of a callback, logged as `step_formula_squared_lengths`."""
LOGGED = "step_{}"
"""Name of an amount in the log. The plain name `tokens` often is the sum since the beginning."""
MAX_AMOUNT = 1e50
"""Upper limit of an amount. Larger values would overflow in products with declared rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScale:
    """Mean size of the measured steps over that of the steps whose FLOPs were counted."""

    tokens: float = 1.0
    squared_lengths: float = 1.0


def step_scale(timeline: Timeline, *, steps: Collection[int]) -> StepScale:
    """Scale of `steps`, whose time is measured, against the steps whose FLOPs were counted."""
    tokens = _scale_of(timeline, TOKENS, steps)
    squares = _scale_of(timeline, SQUARED_LENGTHS, steps)
    return StepScale(tokens=tokens or 1.0, squared_lengths=squares or tokens or 1.0)


def counted_steps(rank: RankTimeline) -> set[int]:
    """Numbers of the steps whose FLOPs the rank counted."""
    return set(rank.of_kind(Kind.FLOPS)["step"].tolist())


def job_scale(timeline: Timeline) -> float:
    """Ranks of the job over the ranks seen here.

    One node's agent sees only its own ranks; all ranks do the same work.
    """
    return timeline.run.info.world_size / max(len(timeline.ranks), 1)


def mean_amount(timeline: Timeline, name: str, *, steps: Collection[int]) -> float | None:
    """Mean amount per step over all ranks of the job; None if it was not logged."""
    mean = _mean(_by_step(timeline, name), steps)
    return None if mean is None else mean * job_scale(timeline)


def _scale_of(timeline: Timeline, name: str, steps: Collection[int]) -> float | None:
    logged = _by_step(timeline, name)
    counted = {step for rank in timeline.ranks for step in counted_steps(rank)}
    mean_all, mean_counted = _mean(logged, steps), _mean(logged, counted)
    return mean_all / mean_counted if mean_all and mean_counted else None


def _mean(logged: Mapping[int, float], steps: Collection[int]) -> float | None:
    amounts = [logged[step] for step in steps if step in logged]
    return sum(amounts) / len(amounts) if amounts else None


def _by_step(timeline: Timeline, name: str) -> dict[int, float]:
    sums: dict[int, float] = defaultdict(float)
    for rank in timeline.ranks:
        for step, value in logged_amounts(rank, LOGGED.format(name)):
            sums[step] += value
    return sums


def logged_amounts(rank: RankTimeline, name: str) -> list[tuple[int, float]]:
    """(Step, value) of each log entry with this name, without values beyond MAX_AMOUNT."""
    records = rank.of_kind(Kind.SCALAR)
    numbers = [number for number in np.unique(records["name"]).tolist() if rank.name(number) == name]
    chosen = records[np.isin(records["name"], numbers)]
    values = np.ascontiguousarray(chosen["value"]).view(np.float64)
    pairs = zip(chosen["step"].tolist(), values.tolist(), strict=True)
    return [(step, value) for step, value in pairs if abs(value) < MAX_AMOUNT]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFlops:
    """Declared model FLOPs of one step of the whole job."""

    model: float
    paper: float | None = None
    """The same with causal attention in full, not halved."""
    convention: str = DECLARED
    dtype: str | None = None
    """Dtype of the products; None: as the settings or the counts state it."""


def declared_flops(
    timeline: Timeline, *, steps: Collection[int], experts: ExpertLoads | None
) -> DeclaredFlops | str | None:
    """Model FLOPs by declaration; None if the training declared none.

    `run.describe(model_flops_per_step=...)` wins over its rates (`flops_per_token`, ...). A sentence if the training
    declared rates but no amounts.
    """
    settings = timeline.run.info.settings
    total, token = positive(settings.get("model_flops_per_step")), positive(settings.get("flops_per_token"))
    if total is not None:
        return DeclaredFlops(model=total)
    return None if token is None else _by_rates(timeline, _rates(token, settings), steps, experts)


def configured_flops(
    timeline: Timeline, *, steps: Collection[int], experts: ExpertLoads | None
) -> DeclaredFlops | None:
    """Model FLOPs by the rates of the model's configuration; None without rates, or without the amounts they need."""
    settings = timeline.run.info.settings
    token = positive(settings.get(FORMULA_TOKEN))
    if token is None:
        return None
    rates = Rates(
        token=token,
        squared_length=positive(settings.get(FORMULA_SQUARED_LENGTH)) or 0.0,
        routed_token=positive(settings.get(FORMULA_ROUTED_TOKEN)) or 0.0,
    )
    squares = mean_amount(timeline, FORMULA_SQUARED_LENGTHS, steps=steps)
    flops, dtype = _by_rates(timeline, rates, steps, experts, squares=squares), settings.get(FORMULA_DTYPE)
    if isinstance(flops, str):
        return None
    return replace(flops, convention=CONFIGURED, dtype=dtype if isinstance(dtype, str) else None)


def positive(value: object) -> float | None:
    """Convert a setting to a float; None unless it is a positive number that is safe to multiply and divide by."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 1 / MAX_AMOUNT < value < MAX_AMOUNT else None


def _rates(token: float, settings: Mapping[str, object]) -> Rates:
    return Rates(
        token=token,
        squared_length=positive(settings.get("flops_per_squared_length")) or 0.0,
        routed_token=positive(settings.get("flops_per_routed_token")) or 0.0,
    )


def _by_rates(
    timeline: Timeline,
    rates: Rates,
    steps: Collection[int],
    experts: ExpertLoads | None,
    *,
    squares: float | None = None,
) -> DeclaredFlops | str:
    """Multiply rates by amounts. Amounts that were logged win over declared ones, and those over `squares`."""
    settings = timeline.run.info.settings
    logged = {name: mean_amount(timeline, name, steps=steps) for name in (TOKENS, SQUARED_LENGTHS)}
    logged[ROUTED_TOKENS] = None if experts is None else experts.rows * job_scale(timeline)
    amounts = {name: value or positive(settings.get(f"{name}_per_step")) for name, value in logged.items()}
    amounts[SQUARED_LENGTHS] = amounts[SQUARED_LENGTHS] or squares
    rate_of = {TOKENS: rates.token, SQUARED_LENGTHS: rates.squared_length, ROUTED_TOKENS: rates.routed_token}
    for name, rate in rate_of.items():
        if rate and amounts[name] is None:
            return _why(name)
    step_amounts = Amounts(
        tokens=amounts[TOKENS] or 0.0,
        squared_lengths=amounts[SQUARED_LENGTHS] or 0.0,
        routed_tokens=amounts[ROUTED_TOKENS] or 0.0,
    )
    return DeclaredFlops(
        model=rates.flops(step_amounts, causal_half=True), paper=rates.flops(step_amounts), convention=FORMULA
    )


def _why(name: str) -> str:
    if name == ROUTED_TOKENS:
        return "no step logged the tokens of its experts; call run.log(**{'expert_tokens[LAYER.EXPERT]': ...})"
    remedy = f"run.log({LOGGED.format(name)}=...) or run.describe({name}_per_step=...)"
    return f"the {name.replace('_', ' ')} of its steps are unknown; call {remedy}"
