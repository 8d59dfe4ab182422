"""Requested windows: steps that a person or an anomaly wanted in detail, and whether all ranks recorded them."""

from dataclasses import dataclass

from traincope.store.job.requests import WindowRequest
from traincope.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedWindow:
    """Steps that a person or an anomaly requested in detail, and what became of them."""

    first_step: int
    last_step: int
    cause: str
    """`profile`, `viewer`, or the kind of fault that opened it."""
    reason: str
    """The cause as a phrase."""
    at_step: int | None
    """Step of the anomaly; None for a person's request."""
    kernels: bool
    """The steps' kernels were requested too."""
    recorded_steps: int
    """Requested steps that all ranks recorded in detail."""
    ranks_without: tuple[int, ...]
    """Ranks that made requested steps without detail: they read the request too late or never."""


def requested_windows(timeline: Timeline) -> tuple[RequestedWindow, ...]:
    """List the requests of the last attempt in their order."""
    return tuple(_window(timeline, request) for request in timeline.run.requests)


def _window(timeline: Timeline, request: WindowRequest) -> RequestedWindow:
    asked = range(request.first_step + 1, request.last_step + 1)
    steps = {rank.rank: [step for step in rank.steps if step.number in asked] for rank in timeline.ranks}
    detailed = [{step.number for step in own if step.detailed} for own in steps.values()]
    return RequestedWindow(
        first_step=asked.start,
        last_step=asked.stop - 1,
        cause=request.cause.value,
        reason=request.reason,
        at_step=request.at_step,
        kernels=request.kernels,
        recorded_steps=len(set.intersection(*detailed)) if detailed else 0,
        ranks_without=tuple(rank for rank, own in steps.items() if not all(step.detailed for step in own)),
    )
