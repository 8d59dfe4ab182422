"""What lost time costs -> its parts of the document: rank-hours always, money where there is a price."""

from traincope.analysis import Analysis, Cost, cost, finer_losses, price_of, rank_hours
from traincope.report import schema


def costs(analysis: Analysis) -> schema.Cost:
    """Without a price."""
    found = cost(analysis.ledger)
    return schema.Cost(
        wall_rank_hours=found.wall_hours,
        rank_hours=dict(found.hours),
        price_per_gpu_hour=None,
        wall_money=None,
        money=None,
        losses=[
            schema.Loss(
                kind=loss.kind.value,
                of=loss.of,
                scope=loss.scope.value,
                ns=loss.ns,
                rank_hours=rank_hours(loss.ns),
                money=None,
            )
            for loss in finer_losses(analysis)
        ],
    )


def hours_of(ns: int | None) -> float | None:
    """Rank-hours, where it is known."""
    return None if ns is None else rank_hours(ns)


def priced(document: schema.Document, *, price_per_gpu_hour: float) -> schema.Document:
    """The same document with a price, in any currency, on every rank-hour that it tells."""
    ledger, kernels = document["ledger"], document["kernels"]
    return {
        **document,
        "verdict": [_finding(finding, price_per_gpu_hour) for finding in document["verdict"]],
        "ledger": None if ledger is None else {**ledger, "cost": _cost(ledger["cost"], price_per_gpu_hour)},
        "kernels": None if kernels is None else _kernels(kernels, price_per_gpu_hour),
    }


def _finding(finding: schema.Finding, price: float) -> schema.Finding:
    gain = price_of(finding["estimated_gain_rank_hours"], price_per_gpu_hour=price)
    return {**finding, "estimated_gain_money": gain}


def _kernels(told: schema.Kernels, price: float) -> schema.Kernels:
    classes: list[schema.KernelClass] = [
        {**one, "inefficiency_money": price_of(one["inefficiency_rank_hours"], price_per_gpu_hour=price)}
        for one in told["classes"]
    ]
    slowdown = price_of(told["overlap_slowdown_rank_hours"], price_per_gpu_hour=price)
    return {**told, "classes": classes, "overlap_slowdown_money": slowdown}


def _cost(told: schema.Cost, price: float) -> schema.Cost:
    found = Cost(wall_hours=told["wall_rank_hours"], hours=told["rank_hours"], price_per_gpu_hour=price)
    return schema.Cost(
        wall_rank_hours=told["wall_rank_hours"],
        rank_hours=told["rank_hours"],
        price_per_gpu_hour=price,
        wall_money=found.wall_money,
        money=None if found.money is None else dict(found.money),
        losses=[{**loss, "money": price_of(loss["rank_hours"], price_per_gpu_hour=price)} for loss in told["losses"]],
    )


def costly(cost: schema.Cost) -> bool:
    """Whether rank-hours are worth a column: a price is known, or they are hours."""
    return cost["money"] is not None or cost["wall_rank_hours"] >= 1
