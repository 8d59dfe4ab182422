"""Source of values that are not finite, and of spikes: the first rank, module and step, by what each rank saw itself.

In a step, a bad value spreads from rank to rank with the activations and the gradients. So the rank that has it alone
in the first bad step is the source; otherwise the one that has it in the forward while the others have it in gradients
only; in a pipeline, the one whose stage comes first. What remains is unknown.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.events import FIRST_JUMP, FIRST_NOT_FINITE
from traincope.store.segments.segments import recorder_events
from traincope.timeline import Timeline
from traincope.units import numbers

OUTPUT = "output"
STEPS_BEFORE = 2
"""Steps before a spike in which its source is sought: a bad update shows in the losses of the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The first bad value of a step on one rank."""

    rank: int
    stage: int
    step: int
    at_ns: int
    """Time at which the recorder wrote it: the step's end, or later on a GPU."""
    place: str
    of: str
    times: float = 1.0
    """Size relative to the largest one before; of a value that is far above its usual size."""

    @property
    def what(self) -> str:
        return f"the {self.of} of {self.place}"


def first_not_finite(timeline: Timeline) -> Iterator[Fault]:
    """One fault for the first step with bad values that a rank has traced."""
    first = _first(_seen(timeline, FIRST_NOT_FINITE))
    if not first:
        return
    sources = upstream(first)
    certain = len(sources) == 1
    alone = len(first) == 1 and len(timeline.ranks) > 1
    yield Fault(
        kind=FaultKind.NOT_FINITE,
        at_ns=min(each.at_ns for each in sources),
        ranks=tuple(each.rank for each in sources),
        step=first[0].step,
        what=f"{_places(sources)} is not finite, before all other values of the step",
        evidence=_evidence(first, sources),
        confidence=HIGH if alone else MEDIUM if certain else UNKNOWN,
    )


class Jumps:
    """Values far above their usual sizes, as the ranks traced them."""

    def __init__(self, timeline: Timeline) -> None:
        self._seen = tuple(_seen(timeline, FIRST_JUMP))

    def behind(self, step: int) -> str:
        """Say what was too large first, in a step or shortly before; empty if nothing was traced."""
        first = _first(each for each in self._seen if step - STEPS_BEFORE <= each.step <= step)
        if not first:
            return ""
        source, *others = upstream(first)
        ranks = numbers([source.rank, *(each.rank for each in others)], "rank")
        return f"{source.what} on {ranks} was {source.times:,.0f} times its usual size first, in step {source.step}"


def _first(seen: Iterable[Seen]) -> list[Seen]:
    """Return what was seen in the first such step, by rank."""
    ordered = sorted(seen, key=lambda each: (each.step, each.rank))
    return [each for each in ordered if each.step == ordered[0].step]


def _seen(timeline: Timeline, event_name: str) -> Iterator[Seen]:
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    for rank in timeline.ranks:
        for event in recorder_events(rank.main):
            values = details[rank.rank].get(int(event["group"]), {})
            if rank.name(int(event["name"])) == event_name and type(values.get("step")) is int:
                yield Seen(
                    rank=rank.rank,
                    stage=rank.stage or 0,
                    step=values["step"],
                    at_ns=int(event["start_ns"]),
                    place=str(values.get("place")),
                    of=str(values.get("of")),
                    times=float(values.get("times") or 1.0),
                )


def upstream(first: Sequence[Seen]) -> list[Seen]:
    """Return the ranks that can be the source: activations go to later stages, gradients to earlier ones."""
    in_forward = [each for each in first if each.of == OUTPUT]
    if in_forward:
        stage = min(each.stage for each in in_forward)
        return [each for each in in_forward if each.stage == stage]
    stage = max(each.stage for each in first)
    return [each for each in first if each.stage == stage]


def _places(sources: Sequence[Seen]) -> str:
    places = list(dict.fromkeys(each.what for each in sources))
    return places[0] if len(places) == 1 else f"{places[0]} (on rank {sources[0].rank})"


def _evidence(first: Sequence[Seen], sources: Sequence[Seen]) -> str:
    others = [each.rank for each in first if each not in sources]
    if len(sources) > 1:
        return f"{numbers([each.rank for each in sources], 'rank')} had it in the same step: the source is unknown"
    if others:
        return f"{numbers(others, 'rank')} had bad values in the same step, but downstream of it"
    return "no other rank had a bad value of its own in this step"
