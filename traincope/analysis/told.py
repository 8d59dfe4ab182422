"""The model's FLOPs of a step as the training told them: in one number, or by what its steps went over."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from traincope.analysis.amounts import LOGGED, MOST, SQUARED_LENGTHS, TOKENS, mean_amount, whole_job
from traincope.analysis.experts import expert_loads
from traincope.plan.rates import Amounts, Rates
from traincope.timeline import Timeline

TOLD = "as the training told"
FORMULA = "by the model's formula, causal attention halved"
ROUTED_TOKENS = "routed_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFlops:
    """Of one step of the whole job."""

    model: float
    paper: float | None = None
    """The same, causal attention not halved."""
    convention: str = TOLD


def told_flops(timeline: Timeline, *, steps: Collection[int]) -> ToldFlops | str | None:
    """`run.describe(model_flops_per_step=...)`, or its rates (`flops_per_token`, ...); None where it told neither.

    A sentence where it told the rates, but not of how much.
    """
    settings = timeline.run.info.settings
    total, token = positive(settings.get("model_flops_per_step")), positive(settings.get("flops_per_token"))
    if total is not None:
        return ToldFlops(model=total)
    return None if token is None else _by_rates(timeline, _rates(token, settings), steps)


def positive(value: object) -> float | None:
    """A setting as a number, if it is a positive one by which others can be multiplied and divided."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 1 / MOST < value < MOST else None


def _rates(token: float, settings: Mapping[str, object]) -> Rates:
    return Rates(
        token=token,
        squared_length=positive(settings.get("flops_per_squared_length")) or 0.0,
        routed_token=positive(settings.get("flops_per_routed_token")) or 0.0,
    )


def _by_rates(timeline: Timeline, rates: Rates, steps: Collection[int]) -> ToldFlops | str:
    """What was logged of the steps wins over what was told of all."""
    settings, experts = timeline.run.info.settings, expert_loads(timeline)
    logged = {name: mean_amount(timeline, name, steps=steps) for name in (TOKENS, SQUARED_LENGTHS)}
    logged[ROUTED_TOKENS] = None if experts is None else experts.rows * whole_job(timeline)
    found = {name: value or positive(settings.get(f"{name}_per_step")) for name, value in logged.items()}
    asked = {TOKENS: rates.token, SQUARED_LENGTHS: rates.squared_length, ROUTED_TOKENS: rates.routed_token}
    for name, rate in asked.items():
        if rate and found[name] is None:
            return _why(name)
    went = Amounts(
        tokens=found[TOKENS] or 0.0,
        squared_lengths=found[SQUARED_LENGTHS] or 0.0,
        routed_tokens=found[ROUTED_TOKENS] or 0.0,
    )
    return ToldFlops(model=rates.flops(went, causal_half=True), paper=rates.flops(went), convention=FORMULA)


def _why(name: str) -> str:
    if name == ROUTED_TOKENS:
        return "what its experts took was not logged in any step; tell run.log(**{'expert_tokens[LAYER.EXPERT]': ...})"
    told = f"run.log({LOGGED.format(name)}=...) or run.describe({name}_per_step=...)"
    return f"the {name.replace('_', ' ')} of its steps are not known; tell {told}"
