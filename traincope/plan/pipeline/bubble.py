"""Pipeline bubble by formula, for equal stages and instant transfers.

P ranks, M microbatches, V stages per rank. F, I, W are the times of one action, B = I + W. `bubble_ratio` is the idle
share of *total* time. Papers also print idle over *ideal* time, `bubble_over_ideal`; the two are b and b / (1 - b).
Total time runs from the step's start to the end of the slowest rank, so it includes the idle time before a rank's first
forward.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traincope.plan.pipeline.actions import EQUAL, Times
from traincope.plan.pipeline.orders import Shape, resolve_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """Idle time of a rank, and its publication."""

    idle: Callable[[Shape, Times], float | None]
    """Idle time in the unit of the times. None for sizes that the formula does not cover."""
    text: str
    """Idle time as a formula."""
    source: str


def _naive(shape: Shape, times: Times) -> float:
    return (shape.ranks - 1) * shape.microbatches * times.total


def _whole_backward(shape: Shape, times: Times) -> float:
    return (shape.ranks - 1) * times.total


def _zb_1p(shape: Shape, times: Times) -> float | None:
    """Idle time of ZB-1P.

    The paper's F + I - W, but at least F and at least I: a long W cannot shorten the way down or up the ranks. If M <
    P, there are too few weight gradients to fill the idle time.
    """
    if shape.microbatches < shape.ranks:
        return None
    forward, backward = times.forward, times.backward_input
    return (shape.ranks - 1) * max(forward, backward, forward + backward - times.backward_weight)


def _zb_v(shape: Shape, times: Times) -> float | None:
    """Idle time of ZB-V before a rank's first action.

    The paper prints zero because it counts from a rank's first action to its last.
    """
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
"""Schedule -> its formula. Adding a formula is one line. Each stage of an interleaved rank takes F / V, so the bubble
is divided by V."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaOnly:
    """A published schedule that has a formula but no order here, so nothing can run or replay it."""

    idle: Callable[[Shape, Times, float], float | None]
    """Idle time of a rank from its first action to its last, given the time of a transfer. None as in `Formula`."""
    text: str
    source: str


def _zb_h2(shape: Shape, times: Times, transfer: float) -> float | None:
    """Idle time of ZB-H2, which holds 2 P - 1 microbatches at once.

    The paper's formula has no transfers; its table of rates has them. Idle time is zero if W is longer than half of the
    way down and up.
    """
    if shape.microbatches < 2 * shape.ranks - 1:
        return None
    round_trip = times.forward + times.backward_input + 2 * transfer
    return (shape.ranks - 1) * max(round_trip - 2 * times.backward_weight, 0.0)


FORMULA_ONLY: Mapping[str, FormulaOnly] = MappingProxyType(
    {
        "zb-h2": FormulaOnly(
            idle=_zb_h2,
            text="(P - 1) max(F + I + 2 T - 2 W, 0) from its first action to its last, T a transfer; M >= 2 P - 1",
            source="Qi et al. 2023, arXiv:2401.10241, table 2",
        )
    }
)
"""Schedules with a formula only. ZB-2P of the same paper has no formula: a search found it."""


def formula_only_ratio(schedule: str, shape: Shape, times: Times = EQUAL, *, transfer: float = 0.0) -> float | None:
    """Idle share of a rank's time from its first action to its last, for a schedule in `FORMULA_ONLY`.

    Steps may overlap there: a rank's first action need not wait for the end of another rank's last. None for sizes that
    the formula does not cover.
    """
    idle = FORMULA_ONLY[schedule].idle(shape, times, transfer)
    return None if idle is None else idle / (idle + shape.microbatches * times.total)


def bubble_ratio(schedule: str, shape: Shape, times: Times = EQUAL) -> float | None:
    """Idle share of total time, in [0, 1). None without a formula for the schedule or this size.

    Raises UsageError for an unknown schedule.
    """
    resolve_schedule(schedule)
    idle = FORMULAS[schedule].idle(shape, times) if schedule in FORMULAS else None
    return None if idle is None else idle / (idle + shape.chunks * shape.microbatches * times.total)


def bubble_over_ideal(schedule: str, shape: Shape, times: Times = EQUAL) -> float | None:
    """Idle over ideal (bubble-free) time, the convention of (P - 1) / M."""
    ratio = bubble_ratio(schedule, shape, times)
    return None if ratio is None else ratio / (1 - ratio)
