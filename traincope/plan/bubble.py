"""Pipeline bubble by formula, for equal stages and free transfers.

P ranks, M microbatches, V stages a rank; F, I, W are the times of one action, B = I + W.
`bubble_ratio` is the idle share of *total* time; papers also print idle over *ideal* time,
`bubble_over_ideal`: the two are b and b / (1 - b). Total time runs from the step's start to the end
of the slowest rank, so the forwards that the last rank waits for at first are idle time too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traincope.plan.actions import EQUAL, Times
from traincope.plan.orders import Shape, find


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """Idle time of a rank, and where it was published."""

    idle: Callable[[Shape, Times], float | None]
    """In the unit of the times; None for sizes of which it says nothing."""
    text: str
    """Idle time as a formula."""
    source: str


def _naive(shape: Shape, times: Times) -> float:
    return (shape.ranks - 1) * shape.microbatches * times.all


def _whole_backward(shape: Shape, times: Times) -> float:
    return (shape.ranks - 1) * times.all


def _zb_1p(shape: Shape, times: Times) -> float | None:
    """The paper's F + I - W, which a W longer than the others cannot push below the way down or up the ranks.

    Below M = P the weights' gradients are too few to fill in.
    """
    if shape.microbatches < shape.ranks:
        return None
    forward, backward = times.forward, times.backward_input
    return (shape.ranks - 1) * max(forward, backward, forward + backward - times.backward_weight)


def _zb_v(shape: Shape, times: Times) -> float | None:
    """The paper has none: that is between a rank's first action and its last."""
    if shape.microbatches < 2 * shape.ranks - 1 or not times.forward == times.backward_input == times.backward_weight:
        return None
    return (shape.ranks - 1) * times.forward


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {
        "naive": Formula(
            idle=_naive, text="(P - 1) M (F + B)", source="Huang et al. 2019, arXiv:1811.06965, figure 2b"
        ),
        "gpipe": Formula(
            idle=_whole_backward, text="(P - 1) (F + B)", source="Huang et al. 2019, arXiv:1811.06965, section 2.3"
        ),
        "1f1b": Formula(
            idle=_whole_backward,
            text="(P - 1) (F + B)",
            source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1",
        ),
        "interleaved": Formula(
            idle=_whole_backward,
            text="(P - 1) (F + B)",
            source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
        ),
        "zb-1p": Formula(
            idle=_zb_1p,
            text="(P - 1) max(F + I - W, F, I); M >= P",
            source="Qi et al. 2023, arXiv:2401.10241, table 2 (ZB-H1)",
        ),
        "zb-v": Formula(
            idle=_zb_v,
            text="(P - 1) F; F = I = W, M >= 2 P - 1",
            source="Qi et al. 2023, arXiv:2401.10241, section 6",
        ),
    }
)
"""Schedule -> its formula: adding one is one line. Each stage of an interleaved rank takes F / V, so V divides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A published schedule of which no order is here, so that nothing runs it or plays it out."""

    idle: Callable[[Shape, Times, float], float | None]
    """Of a rank, from its first action to its last, with transfers that take so long each; None as in `Formula`."""
    text: str
    source: str


def _zb_h2(shape: Shape, times: Times, transfer: float) -> float | None:
    """It holds 2 P - 1 microbatches at once. The paper's formula is without transfers, its table of rates with them.

    A W longer than half the way down and up leaves nothing.
    """
    if shape.microbatches < 2 * shape.ranks - 1:
        return None
    there_and_back = times.forward + times.backward_input + 2 * transfer
    return (shape.ranks - 1) * max(there_and_back - 2 * times.backward_weight, 0.0)


PLANNED: Mapping[str, Planned] = MappingProxyType(
    {
        "zb-h2": Planned(
            idle=_zb_h2,
            text="(P - 1) max(F + I + 2 T - 2 W, 0) from its first action to its last, T a transfer; M >= 2 P - 1",
            source="Qi et al. 2023, arXiv:2401.10241, table 2",
        )
    }
)
"""Of the same paper's ZB-2P there is no formula: it is what a search found."""


def planned_ratio(schedule: str, shape: Shape, times: Times = EQUAL, *, transfer: float = 0.0) -> float | None:
    """Idle share of a rank's time from its first action to its last, of a schedule in `PLANNED`.

    Steps may overlap there: a rank's first action need not wait for the end of another's last. None for sizes of
    which the formula says nothing.
    """
    idle = PLANNED[schedule].idle(shape, times, transfer)
    return None if idle is None else idle / (idle + shape.microbatches * times.all)


def bubble_ratio(schedule: str, shape: Shape, times: Times = EQUAL) -> float | None:
    """Idle share of total time, in [0, 1); None where there is no formula for the schedule or this size.

    Raises UsageError for an unknown schedule.
    """
    find(schedule)
    idle = FORMULAS[schedule].idle(shape, times) if schedule in FORMULAS else None
    return None if idle is None else idle / (idle + shape.chunks * shape.microbatches * times.all)


def bubble_over_ideal(schedule: str, shape: Shape, times: Times = EQUAL) -> float | None:
    """Idle over ideal (bubble-free) time, the convention of (P - 1) / M."""
    ratio = bubble_ratio(schedule, shape, times)
    return None if ratio is None else ratio / (1 - ratio)
