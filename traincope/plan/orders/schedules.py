"""All schedules by name, and which sizes each can have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traincope.errors import UsageError
from traincope.plan.actions import Order
from traincope.plan.orders.dualpipev import dualpipev
from traincope.plan.orders.interleaved import interleaved
from traincope.plan.orders.one_stage import gpipe, naive, one_forward_one_backward
from traincope.plan.orders.shape import Shape, loop, vee
from traincope.plan.orders.zero_bubble import zb_1p, zb_v


def _any_size(_: Shape) -> str | None:
    return None


def _whole_rounds(shape: Shape) -> str | None:
    if shape.microbatches % shape.ranks:
        return f"needs a multiple of {shape.ranks} microbatches, one for each rank, not {shape.microbatches}"
    return None


def _filled(shape: Shape) -> str | None:
    if shape.microbatches < shape.stages:
        return f"needs at least {shape.stages} microbatches, one for each stage, not {shape.microbatches}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is known of a schedule by its name."""

    title: str
    """As papers write it."""
    order: Callable[[int, Shape], Order]
    """What a rank does."""
    placement: Callable[[int, Shape], tuple[int, ...]] = loop
    """The stages of a rank, lowest first."""
    least_chunks: int = 1
    most_chunks: int | None = 1
    """Stages a rank can have; None: any number."""
    splits_backward: bool = False
    """Whether it has I and W, not only B."""
    limit: Callable[[Shape], str | None] = _any_size
    """Why it cannot have this size, beside the stages a rank; None: it can."""

    def refusal(self, shape: Shape) -> str | None:
        """What it would need to have this size; None where it can."""
        if shape.chunks < self.least_chunks or (self.most_chunks is not None and shape.chunks > self.most_chunks):
            more = " or more" if self.most_chunks is None else ""
            return f"needs {self.least_chunks}{more} stage{'s' * (self.least_chunks > 1)} a rank, not {shape.chunks}"
        return self.limit(shape)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gpipe": Schedule(title="GPipe", order=gpipe),
        "1f1b": Schedule(title="1F1B", order=one_forward_one_backward),
        "interleaved": Schedule(
            title="interleaved 1F1B", order=interleaved, least_chunks=2, most_chunks=None, limit=_whole_rounds
        ),
        "zb-1p": Schedule(title="ZB-1P", order=zb_1p, splits_backward=True),
        "zb-v": Schedule(title="ZB-V", order=zb_v, placement=vee, least_chunks=2, most_chunks=2, splits_backward=True),
        "dualpipev": Schedule(
            title="DualPipeV",
            order=dualpipev,
            placement=vee,
            least_chunks=2,
            most_chunks=2,
            splits_backward=True,
            limit=_filled,
        ),
        "naive": Schedule(title="naive", order=naive),
    }
)
"""Name -> schedule: adding one is one line. Of two that are the same for some size, the earlier names it."""


def find(name: str, *, chunks: int | None = None) -> tuple[str, int]:
    """(name, stages a rank) of what is meant: 1F1B of several stages a rank is the interleaved one.

    `chunks` None is the fewest that the schedule can have. Raises UsageError for an unknown name.
    """
    if name not in SCHEDULES:
        raise UsageError(f"schedule {name!r} is not known; choose one of {', '.join(SCHEDULES)}")
    if name == "1f1b" and chunks is not None and chunks > 1:
        name = "interleaved"
    return name, SCHEDULES[name].least_chunks if chunks is None else chunks


def orders(name: str, shape: Shape) -> dict[int, Order]:
    """Rank -> what it does. Raises UsageError for a size that the schedule cannot have."""
    schedule = SCHEDULES[name]
    refusal = schedule.refusal(shape)
    if refusal is not None:
        raise UsageError(f"{name} {refusal}")
    return {rank: schedule.order(rank, shape) for rank in range(shape.ranks)}
