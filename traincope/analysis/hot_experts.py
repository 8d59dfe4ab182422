"""Hot experts: the ranks that have them send more than the others, and let them wait."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from traincope.analysis.comm import AxisOperation
from traincope.analysis.experts import ExpertLoads
from traincope.analysis.findings import HIGH, MEDIUM, WORTH_SAYING, Finding, FindingKind, percent
from traincope.analysis.ledger import Ledger
from traincope.analysis.stragglers import Straggler, Stragglers
from traincope.analysis.terms import COMPUTE
from traincope.analysis.uneven import Uneven

HOT = 1.2
"""Times the mean that a rank must send, or an expert get, before it is called hot."""
ADVICE = (
    "even out what the router chooses (a larger auxiliary loss, a capacity), place hot experts on different ranks, or "
    "keep several copies of them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotAxis:
    """An axis on which some ranks' experts are hot."""

    axes: tuple[str, ...]
    """It, and those on which the same rank keeps others waiting."""
    share: float
    """Of step time: the others' waiting, and what the longer messages take."""
    finding: Finding
    late: Straggler | None
    """The rank that it explains."""


def hot_axes(
    ledger: Ledger, comm: tuple[AxisOperation, ...], stragglers: Stragglers, experts: ExpertLoads | None
) -> Iterator[HotAxis]:
    """Those that cost something worth saying."""
    for row in comm:
        if row.uneven is None or row.uneven.ratio < HOT:
            continue
        waited_for = next((one for one in stragglers.named if row.axis in one.axes), None)
        late = waited_for if waited_for is not None and explains(row.uneven, waited_for) else None
        axes = (row.axis,) if late is None else late.axes
        waiting = sum(ledger.share(f"exposed_wait[{axis}]") or 0.0 for axis in axes) if late is waited_for else 0.0
        longer = row.uneven.cost_ns / ledger.wall_ns
        if waiting + longer >= WORTH_SAYING:
            which = _expert(experts)
            finding = _finding(row, row.uneven, waiting=waiting, longer=longer, which=which)
            confidence = HIGH if late or which else MEDIUM
            yield HotAxis(axes=axes, share=waiting + longer, finding=replace(finding, confidence=confidence), late=late)


def explains(uneven: Uneven, straggler: Straggler) -> bool:
    """Whether a rank is late for what it has to compute, and that is what others sent it."""
    return straggler.rank in uneven.ranks and (straggler.cause is None or straggler.cause in COMPUTE)


def _finding(row: AxisOperation, uneven: Uneven, *, waiting: float, longer: float, which: str) -> Finding:
    ranks = ", ".join(map(str, uneven.ranks))
    who = f"rank {ranks} sends" if len(uneven.ranks) == 1 else f"ranks {ranks} send"
    return Finding(
        kind=FindingKind.HOT_EXPERT,
        ranks=uneven.ranks,
        confidence=MEDIUM,
        evidence=(
            f"{who} {uneven.ratio:.2f} times the mean of its group in {row.operation} on {row.axis}{which}; "
            f"others wait {percent(waiting)} of a step, the longer messages take {percent(longer)}"
        ),
        advice=ADVICE,
        estimated_gain_ratio=waiting + longer,
    )


def _expert(experts: ExpertLoads | None) -> str:
    """Which one, where the training logs what they get."""
    if experts is None or experts.hottest.ratio < HOT:
        return ""
    layer = experts.hottest
    return f": expert {layer.hottest} of layer {layer.layer} gets {layer.ratio:.1f} times its share of tokens"
