"""Tensors that grow on a rank whose memory grows, by the recorder's census of live tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from traincope.events import TENSOR_CENSUS, Kind
from traincope.timeline import RankTimeline, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTensors:
    """Tensors of one shape, dtype and device that became more on a rank between two steps."""

    rank: int
    first_step: int
    last_step: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    tensors: int
    """Number of additional tensors."""
    bytes: int
    """Their size. Views count with their own size."""
    held_by: str | None
    """Holder of one of them, innermost first, e.g. "a list of 64, in trainer.Trainer.losses"; None if that is unknown.
    Known for one group, those with most bytes first."""
    has_graph: bool | None = None
    """One of them holds the graph of its step; None: not known."""

    @property
    def phrase(self) -> str:
        """The group in words."""
        size = " x ".join(map(str, self.shape)) or "scalar"
        held = "" if self.held_by is None else f", held by {self.held_by}"
        held += ", with the graphs of their steps" if self.has_graph else ""
        return f"{self.tensors} more tensors of {size} {self.dtype} in {self.last_step - self.first_step} steps{held}"


def grown_tensors(timeline: Timeline) -> tuple[GrownTensors, ...]:
    """Groups of the latest census of each rank, those with most bytes first."""
    return tuple(group for rank in timeline.ranks for group in _groups(rank, _latest(rank, timeline)))


def _latest(rank: RankTimeline, timeline: Timeline) -> Mapping[str, Any]:
    details = next(records.details for records in timeline.run.ranks if records.rank == rank.rank)
    for event in rank.of_kind(Kind.EVENT)[::-1]:
        if rank.name(int(event["name"])) == TENSOR_CENSUS:
            return details.get(int(event["group"]), {})
    return {}


def _groups(rank: RankTimeline, census: Mapping[str, Any]) -> Iterator[GrownTensors]:
    first, last = census.get("first_step"), census.get("last_step")
    groups = census.get("groups")
    if not isinstance(first, int) or not isinstance(last, int) or not isinstance(groups, list):
        return
    for group in groups:
        if isinstance(group, dict) and isinstance(group.get("shape"), list):
            yield GrownTensors(
                rank=rank.rank,
                first_step=first,
                last_step=last,
                shape=tuple(map(int, group["shape"])),
                dtype=str(group.get("dtype")),
                device=str(group.get("device")),
                tensors=int(group.get("tensors", 0)),
                bytes=int(group.get("bytes", 0)),
                held_by=str(group["held_by"]) if group.get("held_by") else None,
                has_graph=group["has_graph"] if type(group.get("has_graph")) is bool else None,
            )
