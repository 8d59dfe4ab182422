"""All schedules by name, and the sizes that each supports; those with whole backwards are defined here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traincope.errors import UsageError
from traincope.plan.pipeline.actions import BACKWARD, FORWARD, Action, Order
from traincope.plan.pipeline.orders.dualpipev import dualpipev
from traincope.plan.pipeline.orders.shape import Shape, loop, vee
from traincope.plan.pipeline.orders.zero_bubble import zb_1p, zb_v


def interleaved(rank: int, shape: Shape) -> Order:
    """Interleaved 1F1B: V stages per rank, and smaller pieces. M must be a multiple of P.

    Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2. Forwards take P microbatches through each of the rank's
    stages before the next P begin. Backwards do the same from the last stage on. For each later rank, 2 more forwards
    run ahead.
    """
    total = shape.chunks * shape.microbatches
    ahead = min((shape.chunks - 1) * shape.ranks + 2 * (shape.ranks - 1 - rank), total)
    forwards = [_nth(n, FORWARD, loop(rank, shape), ranks=shape.ranks) for n in range(total)]
    backwards = [_nth(n, BACKWARD, loop(rank, shape)[::-1], ranks=shape.ranks) for n in range(total)]
    steady = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return (*forwards[:ahead], *steady, *backwards[total - ahead :])


def _nth(n: int, kind: str, stages: tuple[int, ...], *, ranks: int) -> Action:
    """The rank's n-th action of a kind, with its stages in this order."""
    turn, member = divmod(n, ranks)
    group, chunk = divmod(turn, len(stages))
    return Action(kind, stages[chunk], group * ranks + member)


def naive(rank: int, shape: Shape) -> Order:
    """One microbatch at a time through all stages and back: model parallelism without a pipeline."""
    return tuple(Action(kind, rank, m) for m in range(shape.microbatches) for kind in (FORWARD, BACKWARD))


def gpipe(rank: int, shape: Shape) -> Order:
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""
    return tuple(Action(kind, rank, m) for kind in (FORWARD, BACKWARD) for m in range(shape.microbatches))


def one_forward_one_backward(rank: int, shape: Shape) -> Order:
    """Forwards until the first gradient can arrive, then one forward and one backward in turn.

    PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503, section 2.2). A rank holds the activations of at most P -
    rank microbatches.
    """
    ahead = min(shape.ranks - 1 - rank, shape.microbatches)
    order = [Action(FORWARD, rank, m) for m in range(ahead)]
    for m in range(shape.microbatches):
        if m + ahead < shape.microbatches:
            order.append(Action(FORWARD, rank, m + ahead))
        order.append(Action(BACKWARD, rank, m))
    return tuple(order)


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
    """Properties of one schedule."""

    title: str
    """Name as papers print it."""
    order: Callable[[int, Shape], Order]
    """Actions of a rank."""
    placement: Callable[[int, Shape], tuple[int, ...]] = loop
    """Stages of a rank, lowest first."""
    min_chunks: int = 1
    max_chunks: int | None = 1
    """Most stages per rank. None: any number."""
    splits_backward: bool = False
    """The schedule has I and W, not only B."""
    settled_rounds: int | None = None
    """Rounds of P microbatches after which a rank holds no combination of microbatches that it did not hold before.
    None: never."""
    limit: Callable[[Shape], str | None] = _any_size
    """Reason why it cannot have this size, apart from the stages per rank. None: it can."""

    def refusal(self, shape: Shape) -> str | None:
        """Requirement that this size does not meet. None: the schedule supports the size."""
        if shape.chunks < self.min_chunks or (self.max_chunks is not None and shape.chunks > self.max_chunks):
            more = " or more" if self.max_chunks is None else ""
            return f"needs {self.min_chunks}{more} stage{'s' * (self.min_chunks > 1)} per rank, not {shape.chunks}"
        return self.limit(shape)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gpipe": Schedule(title="GPipe", order=gpipe),
        "1f1b": Schedule(title="1F1B", order=one_forward_one_backward, settled_rounds=1),
        "interleaved": Schedule(
            title="interleaved 1F1B",
            order=interleaved,
            min_chunks=2,
            max_chunks=None,
            settled_rounds=2,
            limit=_whole_rounds,
        ),
        "zb-1p": Schedule(title="ZB-1P", order=zb_1p, splits_backward=True, settled_rounds=1),
        "zb-v": Schedule(
            title="ZB-V", order=zb_v, placement=vee, min_chunks=2, max_chunks=2, splits_backward=True, settled_rounds=2
        ),
        "dualpipev": Schedule(
            title="DualPipeV",
            order=dualpipev,
            placement=vee,
            min_chunks=2,
            max_chunks=2,
            splits_backward=True,
            settled_rounds=2,
            limit=_filled,
        ),
        "naive": Schedule(title="naive", order=naive),
    }
)
"""Name -> schedule. Adding a schedule is one line. If two are equal for some size, the earlier one names it."""


def resolve_schedule(name: str, *, chunks: int | None = None) -> tuple[str, int]:
    """Name and stages per rank of the requested schedule. 1F1B with several stages per rank is interleaved 1F1B.

    `chunks` None is the fewest that the schedule allows. Raises UsageError for an unknown name.
    """
    if name not in SCHEDULES:
        raise UsageError(f"schedule {name!r} is not known; choose one of {', '.join(SCHEDULES)}")
    if name == "1f1b" and chunks is not None and chunks > 1:
        name = "interleaved"
    return name, SCHEDULES[name].min_chunks if chunks is None else chunks


def orders(name: str, shape: Shape) -> dict[int, Order]:
    """Rank -> its actions. Raises UsageError for a size that the schedule does not support."""
    schedule = SCHEDULES[name]
    refusal = schedule.refusal(shape)
    if refusal is not None:
        raise UsageError(f"{name} {refusal}")
    return {rank: schedule.order(rank, shape) for rank in range(shape.ranks)}
