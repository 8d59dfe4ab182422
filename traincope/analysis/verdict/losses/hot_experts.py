"""Findings about hot experts: their ranks send more than the others and make them wait."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from traincope.analysis.attribution.terms import COMPUTE, exposed_transfer, exposed_wait
from traincope.analysis.communication.axis_operations import AxisOperation, MessageImbalance
from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.replaying.prices import Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.stragglers.own_work import OF_DEVICE
from traincope.analysis.stragglers.stragglers import Straggler, Stragglers
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent, priced

HOT = 1.2
"""Ratio to the mean from which a rank's messages, or an expert's rows, count as hot."""
ADVICE = (
    "Balance the router (a larger auxiliary loss, a capacity limit), place hot experts on different ranks, or "
    "replicate them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotAxis:
    """An axis on which some ranks' experts are hot."""

    axes: tuple[str, ...]
    """The axis, and other axes on which the same rank makes others wait."""
    share: float
    """Share of step time: the others' waiting and the longer messages."""
    finding: Finding
    late: Straggler | None
    """The straggler that the hot experts explain."""


def hot_axes(
    ledger: Ledger,
    comm: tuple[AxisOperation, ...],
    stragglers: Stragglers,
    experts: ExpertLoads | None,
    prices: Prices,
) -> Iterator[HotAxis]:
    """Axes whose hot experts cost at least MIN_SHARE."""
    for row in comm:
        if row.message_imbalance is None or row.message_imbalance.ratio < HOT:
            continue
        waited_for = next((straggler for straggler in stragglers.named if row.axis in straggler.axes), None)
        late = waited_for if waited_for is not None and explains(row.message_imbalance, waited_for) else None
        axes = (row.axis,) if late is None else late.axes
        waiting = sum(ledger.share(f"exposed_wait[{axis}]") or 0.0 for axis in axes) if late is waited_for else 0.0
        longer = row.message_imbalance.cost_ns / ledger.wall_ns
        if waiting + longer >= MIN_SHARE:
            which = _expert(experts)
            finding = _finding(row, row.message_imbalance, waiting=waiting, longer=longer, which=which)
            finding = replace(finding, confidence=HIGH if late or which else MEDIUM)
            evened = _evened(ledger, row.axis, longer=longer, waited_on=axes if late is waited_for else ())
            gain = prices.gain(evened, share=waiting + longer)
            yield HotAxis(axes=axes, share=waiting + longer, finding=priced(finding, gain, shown=True), late=late)


def _evened(ledger: Ledger, axis: str, *, longer: float, waited_on: tuple[str, ...]) -> Factors:
    """The change to experts with equal loads: equal messages on the axis, and all ranks join at the mean time."""
    factors: dict[tuple[int | None, str], float] = {(None, exposed_wait(each)): 0.0 for each in waited_on}
    if transfer := ledger.share(exposed_transfer(axis)):
        factors[None, exposed_transfer(axis)] = max(1 - longer / transfer, 0.0)
    return Factors(factors, balanced=frozenset(waited_on))


def explains(message_imbalance: MessageImbalance, straggler: Straggler) -> bool:
    """True if a rank is late because of its compute, and that follows from what others sent it."""
    return straggler.rank in message_imbalance.ranks and straggler.cause in (*COMPUTE, *OF_DEVICE)


def _finding(
    row: AxisOperation, message_imbalance: MessageImbalance, *, waiting: float, longer: float, which: str
) -> Finding:
    ranks = ", ".join(map(str, message_imbalance.ranks))
    senders = f"rank {ranks} sends" if len(message_imbalance.ranks) == 1 else f"ranks {ranks} send"
    return Finding(
        kind=FindingKind.HOT_EXPERT,
        ranks=message_imbalance.ranks,
        confidence=MEDIUM,
        evidence=(
            f"{senders} {message_imbalance.ratio:.2f} times the mean of its group in {row.operation} on {row.axis}"
            f"{which}; others wait {percent(waiting)} of step time, the longer messages take {percent(longer)}"
        ),
        advice=ADVICE,
    )


def _expert(experts: ExpertLoads | None) -> str:
    """Name the hottest expert, if the training logs expert loads."""
    if experts is None or experts.hottest.ratio < HOT:
        return ""
    layer = experts.hottest
    return f": expert {layer.hottest} of layer {layer.layer} gets {layer.ratio:.1f} times its share of tokens"
