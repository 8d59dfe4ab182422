"""Records -> Timeline."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.events import CLEAN, NO_STEP, OPEN, SEND_OPERATIONS, Flag, Kind
from traincope.store import RECORD_DTYPE, RankRecords, RunRecords, read_run
from traincope.timeline.alignment import align
from traincope.timeline.clocks import RankClock, wall_clocks
from traincope.timeline.timeline import TRAINING_THREAD, OpenRecord, RankTimeline, Step, Timeline
from traincope.timeline.traces import read_traces
from traincope.timeline.watching import watched

INTERVALS = (Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.SPAN)


def open_run(path: str | Path) -> Timeline:
    """Open a run directory; raises RunDirectoryError (see `traincope.errors`) where there is none."""
    run = read_run(path)
    return replace(build_timeline(run), traces=read_traces(run))


def build_timeline(run: RunRecords) -> Timeline:
    """Put every rank on the common axis. Ranks that left no record are in `run.missing` only."""
    clocks = wall_clocks(run)
    if len({clocks[rank.rank].host for rank in run.ranks if rank.segments}) > 1:
        clocks = align(_timeline(run, clocks, kinds=(Kind.COLLECTIVE,)))
    return _timeline(run, clocks, kinds=())


def _timeline(run: RunRecords, clocks: Mapping[int, RankClock], *, kinds: tuple[Kind, ...]) -> Timeline:
    """Of records of these kinds alone, where any are given."""
    ranks = tuple(_rank_timeline(rank, clocks[rank.rank], kinds=kinds) for rank in run.ranks if rank.segments)
    return Timeline(run=run, ranks=ranks, clocks=tuple(clocks[rank.rank] for rank in ranks))


def _rank_timeline(rank: RankRecords, clock: RankClock, *, kinds: tuple[Kind, ...]) -> RankTimeline:
    names = dict.fromkeys((TRAINING_THREAD, *rank.threads))
    threads = {name: _aligned(rank, name, clock, kinds=kinds) for name in names}
    steps = threads[TRAINING_THREAD][threads[TRAINING_THREAD]["kind"] == Kind.STEP]
    unfinished = steps[steps["end_ns"] == OPEN]
    ended = rank.info.ending == CLEAN
    return RankTimeline(
        rank=rank.rank,
        coords=rank.info.coord.coords,
        ending=rank.info.ending,
        names=rank.names,
        groups=rank.groups,
        threads=threads,
        steps=_complete_steps(steps),
        open_step=int(unfinished["step"][-1]) if len(unfinished) and not ended else None,
        open_records=() if ended else _open_records(rank, threads[TRAINING_THREAD]),
        last_ns=max(_last_ns(records) for records in threads.values()),
        watched=watched(rank.info.probes),
    )


def _aligned(rank: RankRecords, thread: str, clock: RankClock, *, kinds: tuple[Kind, ...]) -> NDArray[np.void]:
    """A copy of the thread's records on the common axis, the only one that is made of them."""
    parts = [segment.records for segment in rank.segments if segment.thread == thread]
    if kinds:
        parts = [records[np.isin(records["kind"], kinds)] for records in parts]
    aligned = np.concatenate(parts) if parts else np.empty(0, dtype=RECORD_DTYPE)
    starts, ends = aligned["start_ns"], aligned["end_ns"]
    starts[:] = clock.on_axis(starts)
    ends[:] = np.where(ends == OPEN, OPEN, clock.on_axis(ends))
    in_order = bool(np.all(starts[1:] >= starts[:-1]))
    return aligned if in_order else aligned[np.argsort(starts, kind="stable")]


def _last_ns(records: NDArray[np.void]) -> int:
    return int(max(records["start_ns"].max(initial=0), records["end_ns"].max(initial=0)))


def _complete_steps(steps: NDArray[np.void]) -> tuple[Step, ...]:
    complete = steps[(steps["end_ns"] != OPEN) & (steps["flags"] & Flag.PARTIAL == 0)]
    columns = (complete[name].tolist() for name in ("step", "start_ns", "end_ns", "flags", "value"))
    return tuple(
        Step(number=number, start_ns=start_ns, end_ns=end_ns, guessed=bool(flags & Flag.GUESSED), own_ns=own_ns)
        for number, start_ns, end_ns, flags, own_ns in zip(*columns, strict=True)
    )


def _open_records(rank: RankRecords, main: NDArray[np.void]) -> tuple[OpenRecord, ...]:
    """What was under way; a collective that later ones on its channel have overtaken is not."""
    still_open = main[(main["end_ns"] == OPEN) & np.isin(main["kind"], INTERVALS)]
    last_ns = int(main["start_ns"].max(initial=0))
    overtaken = _overtaken(rank, still_open, main)
    return tuple(_open_record(rank, record, last_ns=last_ns) for record in still_open[~overtaken])


def _overtaken(rank: RankRecords, still_open: NDArray[np.void], main: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether a later one of the same group, between two ranks also of the same peer, tag and side, has ended.

    One that ended by an exception says nothing of those before it.
    """
    overtaken = np.zeros(len(still_open), dtype=bool)
    called = np.flatnonzero(still_open["kind"] == Kind.COLLECTIVE)
    ended = main[(main["kind"] == Kind.COLLECTIVE) & (main["end_ns"] != OPEN) & (main["flags"] & Flag.RAISED == 0)]
    channels, of = np.unique(_channels(rank, still_open[called]), axis=0, return_inverse=True)
    there = _channels(rank, ended)
    for number, channel in enumerate(channels):
        latest_ns = ended["start_ns"][(there == channel).all(axis=1)].max(initial=0)
        own = called[of.reshape(-1) == number]
        overtaken[own] = still_open["start_ns"][own] < latest_ns
    return overtaken


def _channels(rank: RankRecords, records: NDArray[np.void]) -> NDArray[np.int64]:
    """What each collective is counted on by this rank, a row each: its group; of a message also peer, tag and side."""
    sends = [number for number, name in enumerate(rank.names) if name in SEND_OPERATIONS]
    direct = records["flags"] & Flag.POINT_TO_POINT > 0
    message = np.stack([records["peer"], records["tag"], np.isin(records["name"], sends)], axis=1, dtype=np.int64)
    return np.column_stack([records["group"], direct, np.where(direct[:, None], message, 0)]).astype(np.int64)


def _open_record(rank: RankRecords, record: np.void, *, last_ns: int) -> OpenRecord:
    """A collective's call holds its thread as long as nothing has begun after it."""
    collective = record["kind"] in (Kind.COLLECTIVE, Kind.STALL)
    number = int(record["group"])
    axis = rank.groups[number].axis if collective and number < len(rank.groups) else None
    what = rank.name(int(record["name"]))
    if record["kind"] == Kind.STALL:
        what = f"the wait for {what}"
    elif record["kind"] == Kind.ACTION:
        what = f"pipeline action {what} of stage {record['peer']}, microbatch {record['sequence']}"
    step = int(record["step"])
    return OpenRecord(
        what=what,
        axis=axis,
        step=None if step == NO_STEP else step,
        start_ns=int(record["start_ns"]),
        in_thread=bool(record["kind"] != Kind.COLLECTIVE or record["start_ns"] == last_ns),
    )
