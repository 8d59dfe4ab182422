"""Types of the counted steps: sums over steps and ranks."""

from typing import Annotated, Any, TypedDict

from traincope.analysis.ledger.device_stalls import DeviceStall
from traincope.analysis.ledger.run_ahead import RunAhead

Terms = dict[str, int | None]
"""Ledger term -> ns, in ledger order; null if nothing measures the term."""


class RankLedger(TypedDict):
    rank: int
    steps: int
    wall_ns: int
    terms: Terms


class AmbiguousWait(TypedDict):
    axis: str
    reason: str
    """One of `traincope.analysis.attribution.stalls.AmbiguousWait`."""
    ns: int


class Loss(TypedDict):
    kind: str
    """One of `traincope.analysis.LossKind`."""
    subject: str
    """Class of kernels, axes, stage or rank of the loss; empty: the kind has only one loss."""
    scope: str
    """Time that contains the loss: steps (counted steps), traces (kernel traces), job (all attempts)."""
    ns: int
    """Sum over all ranks; negative for a gain."""
    rank_hours: float
    money: float | None


class Cause(TypedDict):
    kind: str
    """One of `traincope.analysis.LossKind`."""
    subject: str
    """Axes, stage, rank, phase or reason; empty: the kind has only one slice."""
    ns: int
    """Sum over ranks; negative only for parts of the bubble's jitter."""
    ratio: float | None
    """Share of the terms' time; null if this is 0."""
    basis: str
    """`measured`, `proportion` (an estimate), `at_peak` (a lower bound), `at_most` (an upper bound) or `rest`."""


class TermCauses(TypedDict):
    """Slices of a term, or of the sum of several. They do not overlap, and their sum never exceeds the terms."""

    scope: str
    """`steps`: terms of the ledger. `job`: parts of goodput."""
    terms: list[str]
    ns: int
    """Time of the terms: over ranks and counted steps, or of one rank's job."""
    causes: list[Cause]
    rest_ns: int
    """Time that no cause explains."""


class Cost(TypedDict):
    wall_rank_hours: float
    rank_hours: dict[str, float | None]
    """Ledger term -> rank-hours."""
    price_per_gpu_hour: float | None
    currency: str | None
    """Currency of the price and of all money in the ledger and the verdict, as USD; null without a price."""
    wall_money: float | None
    money: dict[str, float | None] | None
    """Ledger term -> cost; null without a price. A rank has one GPU."""
    losses: list[Loss]
    """Losses by cause, the largest first. They overlap with each other and with terms, so they do not add up."""


class Ledger(TypedDict):
    """All but `timed_steps` is of the counted steps, which have detail. Costs are scaled to all steps."""

    clock: str
    """`host`, or `device`: the clock that measured the terms."""
    ranks: list[RankLedger]
    wall_ns: int
    terms: Terms
    rank_steps: int
    """Number of steps of single ranks in the sums."""
    timed_steps: int
    """Number of steps of the rank with most, with those without detail."""
    ambiguous_waits_ns: int
    """Part of exposed_transfer from which wait could not be separated."""
    ambiguous_waits: list[AmbiguousWait]
    """The same by axis and reason."""
    waterfall: dict[str, float | None]
    """Term -> share of the wall time; the shares that are not null sum to 1."""
    evaluation_ns: int
    """Evaluation of all ranks in the whole run; in no term and no wall time."""
    evaluation_ratio: float
    """Evaluation as a share of the time from the first step or evaluation on."""
    device_stalls: Annotated[Any, list[DeviceStall] | None]
    """Stalls of the GPUs' compute streams for communication, the longest first. The terms are measured on the host,
    which queues work ahead of the GPUs. null: no computation on a GPU, or the GPUs' clocks measured the terms.
    """
    host_hidden_wait: dict[str, int] | None
    """Term -> ns that the host waited while its GPU worked; in no term. null: the host's clock measured the terms."""
    host_clock_reason: str | None
    """Why the hosts measured the terms of a training on GPUs. null: they did not, or no computation on a GPU."""
    run_ahead: Annotated[Any, RunAhead | None]
    """How far the hosts queue work ahead. null: no marks on the GPUs' compute streams measured the terms."""
    cost: Cost
