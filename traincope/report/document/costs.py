"""Costs of lost time in the document: always in rank-hours, in money if a price is given."""

from dataclasses import replace

from traincope.analysis import Analysis, Cost, cost, loss_breakdown, price_of, rank_hours
from traincope.report import schema


def cost_of(analysis: Analysis) -> schema.Cost:
    """Return the costs of the ledger's terms and of losses by cause, without a price."""
    losses = [
        schema.convert(loss, schema.Loss, rank_hours=rank_hours(loss.ns), money=None)
        for loss in loss_breakdown(analysis)
    ]
    return schema.convert(cost(analysis.ledger), schema.Cost, currency=None, losses=losses)


def rank_hours_of(ns: int | None) -> float | None:
    """Convert ns to rank-hours; None stays None."""
    return None if ns is None else rank_hours(ns)


def with_price(document: schema.Document, *, price_per_gpu_hour: float, currency: str) -> schema.Document:
    """Return the document with a price on every number in rank-hours."""
    ledger, kernels = document["ledger"], document["kernels"]
    return {
        **document,
        "verdict": [_finding(finding, price_per_gpu_hour) for finding in document["verdict"]],
        "ledger": None if ledger is None else {**ledger, "cost": _cost(ledger["cost"], price_per_gpu_hour, currency)},
        "kernels": None if kernels is None else _kernels(kernels, price_per_gpu_hour, currency),
    }


def with_energy_price(analysis: Analysis, *, price_per_kwh: float | None, currency: str) -> Analysis:
    """Return the analysis with a price of the energy of the GPUs, if it is given."""
    if price_per_kwh is None:
        return analysis
    return replace(analysis, energy=replace(analysis.energy, price_per_kwh=price_per_kwh, currency=currency))


def _finding(finding: schema.Finding, price: float) -> schema.Finding:
    gain = price_of(finding["estimated_gain_rank_hours"], price_per_gpu_hour=price)
    return {**finding, "estimated_gain_money": gain}


def _kernels(part: schema.Kernels, price: float, currency: str) -> schema.Kernels:
    classes: list[schema.KernelClass] = [
        {
            **kernel_class,
            "inefficiency_money": price_of(kernel_class["inefficiency_rank_hours"], price_per_gpu_hour=price),
        }
        for kernel_class in part["classes"]
    ]
    slowdown = price_of(part["overlap_slowdown_rank_hours"], price_per_gpu_hour=price)
    return {**part, "classes": classes, "overlap_slowdown_money": slowdown, "currency": currency}


def _cost(part: schema.Cost, price: float, currency: str) -> schema.Cost:
    with_price = Cost(wall_hours=part["wall_rank_hours"], hours=part["rank_hours"], price_per_gpu_hour=price)
    losses = [{**loss, "money": price_of(loss["rank_hours"], price_per_gpu_hour=price)} for loss in part["losses"]]
    return schema.convert(with_price, schema.Cost, currency=currency, losses=losses)


def shows_costs(cost: schema.Cost) -> bool:
    """True if rank-hours are worth a column: a price is known, or the run took at least one hour."""
    return cost["money"] is not None or cost["wall_rank_hours"] >= 1
