"""The ledger over all steps of a run: its sums, and the sampling error where only windows show a term."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from traincope.report.schema import Estimate, Ledger, RunLedger, Terms
from traincope.units import count, share

EXACT, UNKNOWN = "exact", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSteps:
    """Sums over all ranks and steps."""

    at: tuple[str, ...]
    """Their place in the document."""
    wall_ns: int
    terms: Terms
    rank_steps: int
    num_steps: int

    @property
    def mean_step_ns(self) -> float:
        return self.wall_ns / self.rank_steps


def all_steps(ledger: Ledger) -> AllSteps:
    """Return the sums over all steps: the ledger's own if all steps have detail."""
    run = ledger["run"]
    if run is None:
        num_steps = max(rank["steps"] for rank in ledger["ranks"])
        return AllSteps(
            at=("ledger",),
            wall_ns=ledger["wall_ns"],
            terms=ledger["terms"],
            rank_steps=ledger["rank_steps"],
            num_steps=num_steps,
        )
    return AllSteps(
        at=("ledger", "run"),
        wall_ns=run["wall_ns"],
        terms=run["terms"],
        rank_steps=run["rank_steps"],
        num_steps=run["steps"],
    )


def sampled(ledger: Ledger) -> str:
    """The number of sampled steps behind a section, e.g. ", from 151 of 639 steps"; empty if all have detail."""
    run = ledger["run"]
    return "" if run is None else f", from {run['sampled_steps']:,} of {count(run['steps'], 'step')}"


def interval(estimate: Estimate) -> str:
    """The 95 % interval of a term's share."""
    low, high = estimate["low"], estimate["high"]
    if low is None or high is None:
        return UNKNOWN
    return EXACT if low == high else f"{100 * low:.1f} to {share(high)}"


def share_with_interval(estimate: Estimate) -> str:
    """A share over all steps and its 95 % interval, e.g. "12.1 % (11.0 to 13.2 %)"."""
    return f"{share(estimate['estimate'])} ({_interval_or_why(estimate, interval(estimate))})"


def mean_with_interval(estimate: Estimate, show: Callable[[float | None], str]) -> str:
    """A mean over all steps and its 95 % interval, e.g. "2.1 (2.0 to 2.1)"."""
    limits = f"{show(estimate['low'])} to {show(estimate['high'])}"
    return f"{show(estimate['estimate'])} ({_interval_or_why(estimate, limits)})"


def _interval_or_why(estimate: Estimate, limits: str) -> str:
    return limits if estimate["reason"] is None else f"sampling error unknown: {estimate['reason']}"


def error_notes(run: RunLedger) -> Iterator[str]:
    """Lines below a ledger with estimates: how it was sampled, sums of terms, terms without an interval."""
    detailed = f"{run['sampled_steps']:,} of {count(run['steps'], 'step')}"
    yield f"exact: every step records it; other terms are estimates from {detailed}, with 95 % intervals"
    for name, estimate in run["sums"].items():
        if estimate["estimate"]:
            yield f"{_title(name)}: {share(estimate['estimate'])} of step time{_error(estimate, steps=run['steps'])}"
    reasons: dict[str, list[str]] = {}
    for term, estimate in run["estimates"].items():
        if estimate["reason"] is not None and estimate["estimate"]:
            reasons.setdefault(estimate["reason"], []).append(term)
    for reason, terms in reasons.items():
        yield f"sampling error unknown for {', '.join(terms)}: {reason}"


def _error(estimate: Estimate, *, steps: int) -> str:
    source = f"from {estimate['steps']:,} of {count(steps, 'step')}"
    if estimate["reason"] is not None:
        return f", {source}; {_interval_or_why(estimate, UNKNOWN)}"
    return f" ({interval(estimate)}, {source})"


def _title(name: str) -> str:
    family, _, axis = name.partition("[")
    return f"{family.replace('_', ' ')} on {axis.rstrip(']')}" if axis else family
