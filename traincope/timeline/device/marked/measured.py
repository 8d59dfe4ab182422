"""Timeline of a recorded run on the clocks of its GPUs, if marks on their compute streams measured enough of it."""

from dataclasses import replace

import numpy as np

from traincope.events import Flag, Kind
from traincope.timeline.collectives.nccl import nccl_runs
from traincope.timeline.device.marked.lane import Lane
from traincope.timeline.device.marked.messages import messages
from traincope.timeline.timeline import TRAINING_THREAD, RankTimeline, Timeline


def on_device(timeline: Timeline, *, until: int | None = None) -> Timeline:
    """Return the timeline with the lanes of the GPUs as training threads, and those of the hosts as threads "host".

    It is the timeline itself if it was imported, or unless marks measure at least half of the steps with detail on
    every rank; without such steps, half of the steps. `until`: the last step of a running job whose marks are not
    awaited any more. Later steps are left out, and every step up to it is in the result.
    """
    known = timeline if until is None else _up_to(timeline, until)
    if not timeline.ranks or timeline.run.info.imported or why_not_on_device(known) is not None:
        return timeline
    runs_on = until is not None
    return replace(timeline, ranks=_with_messages(known, runs_on=runs_on))


def _with_messages(timeline: Timeline, *, runs_on: bool) -> tuple[RankTimeline, ...]:
    runs = nccl_runs(timeline)
    lanes = [Lane.of(rank, runs=runs.get(rank.rank)) for rank in timeline.ranks]
    by_rank = messages([(lane.rank, lane.stalls) for lane in lanes if lane.has_actions])
    ranks = []
    for lane in lanes:
        shown = np.concatenate([lane.marks.collectives, by_rank.get(lane.rank.rank, lane.marks.collectives[:0])])
        marks = replace(lane.marks, collectives=shown[np.argsort(shown["start_ns"], kind="stable")])
        ranks.append(replace(lane, marks=marks).rank_on_device(runs_on=runs_on))
    return tuple(ranks)


def _up_to(timeline: Timeline, until: int) -> Timeline:
    ranks = (replace(rank, steps=tuple(step for step in rank.steps if step.number <= until)) for rank in timeline.ranks)
    return replace(timeline, ranks=tuple(ranks))


def collectives_on_streams(timeline: Timeline) -> Timeline:
    """Return a timeline of only the collectives and messages that marks show, of the ranks that marks measured."""
    return replace(
        timeline,
        ranks=tuple(
            replace(rank, threads={TRAINING_THREAD: rank.marks.collectives})
            for rank in timeline.ranks
            if rank.marks is not None
        ),
    )


def why_not_on_device(timeline: Timeline) -> str | None:
    """Return why marks do not measure the ledger of a recorded run; None if they do."""
    unmarked = [rank.rank for rank in timeline.ranks if not _has_marks(rank)]
    if unmarked:
        return f"rank {unmarked[0]} has no marks on a compute stream"
    return next((reason for rank in timeline.ranks if (reason := Lane.of(rank).why_not_used()) is not None), None)


def _has_marks(rank: RankTimeline) -> bool:
    return any(
        bool(((records["flags"] & Flag.DEVICE > 0) & (records["kind"] == Kind.STEP)).any())
        for records in rank.threads.values()
    )
