"""Order of the data over restarts: batches that a continued training was fed again, or was not fed.

A training that continues from a state of n steps must go on with the batch of the next step. The attempts before show
which batch that was if they reached it. Each rank is compared with itself, by fingerprints of its batches. A training
that rolled back within an attempt has other batches in the same steps; the state has those after the last rollback.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np

from traincope.analysis.confidence import HIGH
from traincope.analysis.efficiency.goodput import all_attempts
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.arrays import Bools, Ints
from traincope.store import Attempt, RankBatches
from traincope.store.job.attempts import continued_from, undone_steps
from traincope.timeline import Timeline
from traincope.units import numbers

MAX_PLACES = 64
"""Largest number of earlier batches that may equal the first batch of an attempt."""


class Order(StrEnum):
    """Answer about the order of the data. The value is the spelling in JSON."""

    RIGHT = "right"
    FED_AGAIN = "fed_again"
    SKIPPED = "skipped"
    REORDERED = "reordered"
    """The batches that follow came too, in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Answer about one attempt, on the ranks that share it."""

    attempt: int
    step: int | None
    """Steps that its state had had; None: unknown."""
    ranks: tuple[int, ...] = ()
    """Ranks with the same answer."""
    order: Order | None = None
    """None: the evidence does not show it."""
    num_batches: int | None = None
    """Batches per rank that were fed again, or skipped."""
    first_step: int | None = None
    """First step, counted from 1, whose batches they are."""
    last_step: int | None = None
    reason: str | None = None
    """Reason why the order is unknown."""
    loss_before: float | None = None
    """Loss of the step before it continued, if that was logged and finite."""
    loss_after: float | None = None
    """The first loss that the attempt logged."""
    at_ns: int = 0
    """Wall time of the attempt's first batch."""

    @property
    def what(self) -> str:
        """The answer as a phrase."""
        begin = f"attempt {self.attempt}"
        if self.order is None:
            return f"{begin}: the order of the data is unknown, because {self.reason}"
        begin += f" continued after step {self.step}"
        if self.order is Order.RIGHT:
            return f"{begin} with the batches that follow it"
        batches = "1 batch" if self.num_batches == 1 else f"{self.num_batches:,} batches"
        steps = numbers(range(self.first_step or 0, (self.last_step or 0) + 1), "step")
        if self.order is Order.REORDERED:
            return f"{begin} with the batches that follow it in another order: {batches}, of {steps}"
        if self.order is Order.FED_AGAIN:
            return f"{begin} and was fed {batches} again: {steps}"
        return f"{begin} and skipped {batches}: {steps}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    """The order of the data of a run."""

    continuations: tuple[Continuation, ...]
    """One entry per attempt after the first that fetched data, or several if its ranks differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trail:
    """Batches of one rank by steps of the training, over attempts."""

    steps: Ints
    """Steps of the training before the batch's. A rollback lowers them."""
    undone: Bools
    """True for a batch whose step a rollback undid."""
    fingerprints: Ints
    ends_pass: Bools
    starts_pass: Bools

    def until(self, step: int) -> "_Trail":
        return self._cut(slice(0, self.place(step)))

    def without(self, first: int) -> "_Trail":
        return self._cut(slice(first, None))

    def place(self, step: int) -> int:
        """Position after the last batch of the steps before a step."""
        return int(np.flatnonzero(self.steps < step).max(initial=-1)) + 1

    def after_undone(self, place: int) -> int:
        """Position of the first batch from this one on that no rollback passed over."""
        standing = np.flatnonzero(~self.undone[place:])
        return place + int(standing[0]) if len(standing) else len(self.undone)

    def then(self, later: "_Trail") -> "_Trail":
        return _Trail(**{name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in _COLUMNS})

    def _cut(self, part: slice) -> "_Trail":
        return _Trail(**{name: getattr(self, name)[part] for name in _COLUMNS})


_COLUMNS = tuple(column.name for column in fields(_Trail))


@dataclass(slots=True)
class _Rank:
    """Batches and losses of one rank before an attempt."""

    trails: list[_Trail]
    """The batches as if each was trained in the step that fetched it; then, as if batches were fetched ahead."""
    losses: dict[int, float]
    num_ahead: int
    """Batches that its first attempt fetched ahead in its first step."""


def data_order(timeline: Timeline) -> DataOrder | None:
    """Compare the batches of each attempt with those of the attempts before.

    None if only one attempt made steps, or if no batch of a DataLoader was recorded.
    """
    return None if timeline.run.info.imported else data_order_of(all_attempts(timeline), timeline.run.batches)


def data_order_of(attempts: Sequence[Attempt], batches: Callable[[int], Mapping[int, RankBatches]]) -> DataOrder | None:
    """Compare attempts in order, also if the last still runs. `batches`: number of an attempt -> rank -> its batches.

    None as for `data_order`.
    """
    stepping = [attempt for attempt in attempts if attempt.first_step_ns is not None]
    fed = [batches(attempt.number) for attempt in stepping] if len(stepping) > 1 else []
    if not any(len(rank.steps) for ranks in fed for rank in ranks.values()):
        return None
    return DataOrder(continuations=tuple(_merged(_continuations(stepping, fed))))


def data_faults(order: DataOrder | None) -> Iterator[Fault]:
    """One fault for each continuation with batches that were fed again or skipped."""
    for each in () if order is None else order.continuations:
        if each.order in (Order.FED_AGAIN, Order.SKIPPED):
            again = each.order is Order.FED_AGAIN
            yield Fault(
                kind=FaultKind.DATA_FED_AGAIN if again else FaultKind.DATA_SKIPPED,
                at_ns=each.at_ns,
                ranks=each.ranks,
                what=each.what,
                evidence=_loss(each),
                confidence=HIGH,
            )


def _loss(each: Continuation) -> str:
    if each.loss_before is None or each.loss_after is None:
        return ""
    return f"the loss was {each.loss_before:.4g} before and is {each.loss_after:.4g} in the first logged step after"


def _continuations(attempts: Sequence[Attempt], fed: Sequence[Mapping[int, RankBatches]]) -> Iterator[Continuation]:
    """One entry per rank and attempt after the first."""
    ranks: dict[int, _Rank] = {}
    starts = continued_from(attempts)
    world = set(fed[0])
    for at, attempt in enumerate(attempts):
        own, start = fed[at], starts[attempt.number]
        if at:
            for rank, batches in own.items():
                found = _of_rank(ranks.get(rank), batches, attempt, start=start, same_world=set(own) == world)
                yield replace(found, ranks=(rank,), at_ns=batches.began_ns)
        world = set(own)
        ranks = {
            rank: _after(ranks.get(rank), batches, attempt, start=start)
            for rank, batches in own.items()
            if start is not None
        }


def _of_rank(
    before: _Rank | None, after: RankBatches, attempt: Attempt, *, start: int | None, same_world: bool
) -> Continuation:
    unknown = Continuation(attempt=attempt.number, step=start)
    if start is None:
        return replace(unknown, reason="it did not declare the step from which it continued")
    if before is None or not same_world:
        return replace(unknown, reason="the attempt before had other ranks, or left no batches")
    if after.unread is not None:
        return replace(unknown, reason=f"batches were not read: {after.unread}")
    if not after.complete:
        return replace(unknown, reason="records of batches were dropped")
    fetched = tuple(_trails(after, attempt, start=start))
    answers = [_compare(trail, own, unknown) for trail, own in zip(before.trails, fetched, strict=True)]
    if _passed_over(before, fetched, start):
        answers = answers[:1]
    num_unseen = _num_unseen(before, fetched, start)
    if num_unseen:
        steps = start + np.arange(num_unseen) // _usual(fetched[0].steps)
        answers = [_named(unknown, steps, Order.SKIPPED)]
    first = float(after.losses[0]) if len(after.losses) and np.isfinite(after.losses[0]) else None
    return replace(_agreed(answers, unknown), loss_before=before.losses.get(start - 1), loss_after=first)


def _passed_over(before: _Rank, fetched: Sequence[_Trail], start: int) -> bool:
    """True if the batches that the first step fetched too many were not trained.

    They are as many as the state has had, in all or in its last pass; or they are the first of its last pass, and the
    training fetched none ahead in its first attempt. The latter is a rank that continues from another state.
    """
    trained, all_fetched = fetched
    earlier = before.trails[0]
    place = earlier.place(start)
    begin = int(np.flatnonzero(earlier.starts_pass[:place]).max(initial=0))
    surplus = len(all_fetched.steps) - len(trained.steps)
    again = np.array_equal(all_fetched.fingerprints[:surplus], earlier.fingerprints[begin : begin + surplus])
    return surplus > 1 and (surplus in (place, place - begin) or (again and not before.num_ahead))


def _num_unseen(before: _Rank, fetched: Sequence[_Trail], start: int) -> int:
    """Number of batches that the first step passed over after those of the steps that the state has had."""
    trained, all_fetched = fetched
    earlier = before.trails[1 if before.num_ahead else 0]
    place = earlier.place(start)
    begin = int(np.flatnonzero(earlier.starts_pass[:place]).max(initial=0))
    had = earlier.fingerprints[begin:place]
    passed = all_fetched.fingerprints[: len(all_fetched.steps) - len(trained.steps)]
    again = 0 < len(had) <= len(passed) and had.all() and np.array_equal(passed[: len(had)], had)
    return max(len(passed) - len(had) - before.num_ahead, 0) if again else 0


def _usual(steps: Ints) -> int:
    """Number of batches of a step, in the middle of those after the first."""
    per_step = np.unique(steps, return_counts=True)[1]
    return max(int(np.median(per_step[1:])) if len(per_step) > 1 else int(per_step.sum()), 1)


def _agreed(answers: Sequence[Continuation], unknown: Continuation) -> Continuation:
    """The answer if batches are trained when fetched, or fetched ahead. A right order in one of the two is right."""
    right = next((answer for answer in answers if answer.order is Order.RIGHT), None)
    if right is not None or len({(answer.order, answer.num_batches) for answer in answers}) == 1:
        return right or answers[0]
    return replace(unknown, reason="the training fetches batches ahead, so it is unknown which of them it trained on")


def _after(before: _Rank | None, batches: RankBatches, attempt: Attempt, *, start: int) -> _Rank:
    """Join batches and losses of a rank after an attempt: those before its first step, and its own."""
    trails = [*_trails(batches, attempt, start=start)]
    kept = [] if before is None else [trail.until(start) for trail in before.trails]
    losses = {} if before is None else {step: loss for step, loss in before.losses.items() if step < start}
    finite = np.isfinite(batches.losses)
    steps = (_training_steps(batches.loss_steps[finite], attempt) + start).tolist()
    losses |= dict(zip(steps, batches.losses[finite].tolist(), strict=True))
    joined = [earlier.then(own) for earlier, own in zip(kept, trails, strict=True)] if kept else trails
    num_ahead = len(trails[1].steps) - len(trails[0].steps) if before is None else before.num_ahead
    return _Rank(trails=joined, losses=losses, num_ahead=num_ahead)


def _training_steps(steps: Ints, attempt: Attempt) -> Ints:
    """Steps before each of the attempt's steps since its begin, without those that were undone until then."""
    return steps - sum((back.undone * (steps >= back.after) for back in attempt.rollbacks), np.zeros_like(steps))


def _trails(batches: RankBatches, attempt: Attempt, *, start: int) -> Iterator[_Trail]:
    """The batches of an attempt as if each was trained in its step, and as if the first ones were fetched ahead.

    More batches in the first step than in the others were fetched ahead, or only to pass over them.
    """
    undone = undone_steps(np.ones(int(batches.steps.max(initial=-1)) + 1, dtype=np.int64), attempt.rollbacks)
    trail = _Trail(
        steps=_training_steps(batches.steps, attempt) + start,
        undone=undone[batches.steps],
        fingerprints=batches.fingerprints if batches.complete else np.zeros_like(batches.fingerprints),
        ends_pass=batches.ends_pass,
        starts_pass=batches.starts_pass,
    )
    usual = _usual(batches.steps)
    surplus = max(int(np.count_nonzero(batches.steps == batches.steps[0])) - usual, 0) if len(batches.steps) else 0
    yield trail.without(surplus)
    ahead = _training_steps(np.arange(len(trail.steps)) // usual, attempt) + start
    yield replace(trail, steps=ahead) if surplus else trail


def _compare(before: _Trail, after: _Trail, unknown: Continuation) -> Continuation:
    """Find the place of the attempt's batches among the earlier ones."""
    step = unknown.step or 0
    place, earlier, fed = before.place(step), before.fingerprints, after.fingerprints
    if not len(fed) or not len(earlier):
        return replace(unknown, reason="it or the attempt before left no batches")
    if step > int(before.steps[-1]) + 1:
        return replace(unknown, reason=f"the batches up to step {step} were not recorded")
    if not earlier.all():
        return replace(unknown, reason="batches of the attempts before were not read, or their records were dropped")
    starts = np.flatnonzero(earlier == fed[0])
    if len(starts) > MAX_PLACES or (len(earlier) > 1 and bool((earlier[1:] == earlier[:-1]).any())):
        return replace(unknown, reason="fingerprints do not tell its batches apart")
    places = [at for at in starts.tolist() if np.array_equal(earlier[at : at + len(fed)], fed[: len(earlier) - at])]
    if place in places or before.after_undone(place) in places:
        return replace(unknown, order=Order.RIGHT)
    num_ahead = len(earlier) - place
    if not places:
        reason = _no_place(num_ahead, step=step, known=bool(len(starts)))
        return _for_a_while(before, after, place, replace(unknown, reason=reason))
    nearest = min(places, key=lambda at: abs(at - place))
    if place - nearest in [at - place for at in places]:
        return replace(unknown, reason="its batches follow at two places of the earlier order")
    if not num_ahead and _is_new_pass(before, nearest):
        return replace(unknown, order=Order.RIGHT)
    low, high = sorted((place, nearest))
    between = before.steps[low:high][~before.undone[low:high]] if nearest < place else before.steps[low:high]
    if place < nearest and bool(np.isin(earlier[low:high], fed).any()):
        reason = _no_place(num_ahead, step=step, known=True)
        return _for_a_while(before, after, place, replace(unknown, reason=reason))
    return _named(unknown, between, Order.FED_AGAIN if nearest < place else Order.SKIPPED)


def _for_a_while(before: _Trail, after: _Trail, place: int, unknown: Continuation) -> Continuation:
    """Find the place of the attempt's first batches, if it continues differently from there than the earlier order.

    Only where no earlier batch came twice: otherwise passes repeat the data by themselves.
    """
    earlier, fed = before.fingerprints, after.fingerprints
    ahead = earlier[place:]
    if len(np.unique(earlier)) < len(earlier):
        return unknown
    at = int(np.flatnonzero(earlier == fed[0])[0]) if (earlier == fed[0]).any() else None
    common = 0 if at is None else _common(earlier[at:], fed)
    if at is not None and at < place and (common > 1 or after.ends_pass[0]):
        return _named(unknown, before.steps[at : min(at + common, place)], Order.FED_AGAIN)
    came = np.isin(ahead, fed[: len(ahead)])
    if len(ahead) > 1 and came.all():
        return _named(unknown, before.steps[place:], Order.REORDERED)
    return unknown


def _common(first: Ints, second: Ints) -> int:
    """Return how many values both begin with."""
    shared = min(len(first), len(second))
    differs = np.flatnonzero(first[:shared] != second[:shared])
    return int(differs[0]) if len(differs) else shared


def _named(unknown: Continuation, steps: Ints, order: Order) -> Continuation:
    return replace(
        unknown,
        order=order,
        num_batches=len(steps),
        first_step=int(steps[0]) + 1,
        last_step=int(steps[-1]) + 1,
        reason=None,
    )


def _is_new_pass(before: _Trail, at: int) -> bool:
    """True if the earlier batches go on at this place by themselves: they end a pass, or have repeated before."""
    period = len(before.steps) - at
    repeated = period < len(before.steps) and np.array_equal(before.fingerprints[period:], before.fingerprints[:at])
    return repeated or bool(before.starts_pass[at] and before.ends_pass[-1])


def _no_place(num_ahead: int, *, step: int, known: bool) -> str:
    if not num_ahead:
        return f"no attempt before fetched a batch after step {step}"
    if known:
        return f"the batches after step {step} came in another order before"
    batches = "the batch" if num_ahead == 1 else f"the {num_ahead:,} batches"
    return f"{batches} after step {step} did not come next: skipped, or the order is another one"


def _merged(found: Iterator[Continuation]) -> Iterator[Continuation]:
    """Join ranks with the same answer. Losses and the time are those of the first."""
    same: dict[Continuation, list[Continuation]] = defaultdict(list)
    for each in found:
        same[replace(each, ranks=(), loss_before=None, loss_after=None, at_ns=0)].append(each)
    for alike in same.values():
        yield replace(alike[0], ranks=tuple(sorted(rank for each in alike for rank in each.ranks)))
