"""Construction of a timeline from the records of a run."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import chosen, joined
from traincope.events import CLEAN, NO_STEP, OPEN, SEND_OPERATIONS, Flag, Kind, Phase
from traincope.store import RECORD_DTYPE, RankRecords, RunRecords, read_run
from traincope.store.reading import read_earlier
from traincope.store.segments.segments import last_instant_ns
from traincope.timeline.alignment import align
from traincope.timeline.clocks.clocks import RankClock, host_of, wall_clocks
from traincope.timeline.clocks.offsets import Offsets
from traincope.timeline.collectives.between_jobs import with_groups_between_jobs
from traincope.timeline.collectives.borders import even_windows
from traincope.timeline.collectives.nccl import NCCL_KINDS
from traincope.timeline.device import with_device_records
from traincope.timeline.observation import observation
from traincope.timeline.timeline import TRAINING_THREAD, OpenRecord, RankTimeline, Step, Timeline
from traincope.timeline.traces import read_traces

CLOCK_KINDS = (Kind.CLOCK, Kind.COLLECTIVE, *NCCL_KINDS)
"""Kinds of records from which the clocks of a run follow."""
JOB_KINDS = (Kind.CLOCK, Kind.STEP, Kind.SCALAR, Kind.EVENT)
JOB_PHASES = (Phase.CHECKPOINT_STALL, Phase.EVALUATION, Phase.COMPILE)
"""Records of an earlier attempt that are kept: by kind, or by phase."""
MAX_EARLIER_BYTES = 1 << 30
"""Largest size of the files of earlier attempts that are read; the newest attempts come first."""
INTERVALS = (Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.SPAN)


def open_run(path: str | Path, *, executor: Executor | None = None) -> Timeline:
    """Open a run directory; raises RunDirectoryError (see `traincope.errors`) if there is none.

    The workers of `executor` read its ranks; without it, this process does.
    """
    run = read_run(path, executor=executor)
    traces = read_traces(run)
    timeline = _imported(with_device_records(run, traces.ranks)) if run.info.imported else build_timeline(run)
    return replace(timeline, traces=traces, earlier=_earlier(run))


def _imported(run: RunRecords) -> Timeline:
    """Build the timeline of an imported run rank by rank. A rank of it and of the run share their records: those of
    large traces take much memory, and those on the rank's own clock are not needed again.
    """
    clocks, records = clocks_of(run), list(run.ranks)
    run = replace(run, ranks=())
    ranks: list[RankTimeline] = []
    for place, rank in enumerate(records):
        if rank.segments:
            ranks.append(_rank_timeline(rank, clocks[rank.rank], kinds=(), copied=False))
            records[place] = _sharing(rank, ranks[-1])
    even_windows(ranks)
    run = replace(run, ranks=tuple(records))
    return Timeline(run=run, ranks=tuple(ranks), clocks=tuple(clocks[rank.rank] for rank in ranks))


def _sharing(rank: RankRecords, timeline: RankTimeline) -> RankRecords:
    """The rank with the records of its timeline, if each thread has one segment."""
    if len({segment.thread for segment in rank.segments}) < len(rank.segments):
        return rank
    segments = (replace(segment, records=timeline.threads[segment.thread]) for segment in rank.segments)
    return replace(rank, segments=tuple(segments))


def _earlier(run: RunRecords) -> tuple[Timeline, ...]:
    """Timelines of the earlier attempts, the oldest first. Only wall clocks align their hosts."""
    found = read_earlier(run, reduce=_of_the_job, max_bytes=MAX_EARLIER_BYTES)
    return tuple(_timeline(each, wall_clocks(each), kinds=()) for each in reversed([*found]))


def _of_the_job(rank: RankRecords) -> RankRecords:
    """Keep what the job's history needs: a few records per step."""
    return replace(rank, segments=tuple(replace(each, records=_kept(each.records)) for each in rank.segments), looks=())


def _kept(records: NDArray[np.void]) -> NDArray[np.void]:
    in_phase = np.isin(records["kind"], (Kind.PHASE, Kind.ACTION)) & np.isin(records["phase"], JOB_PHASES)
    return chosen(records, np.isin(records["kind"], JOB_KINDS) | in_phase)


def build_timeline(run: RunRecords) -> Timeline:
    """Put every rank on the common axis. Ranks without records are only in `run.missing`."""
    timeline = _timeline(run, clocks_of(run), kinds=())
    return replace(timeline, witnessed=_timeline_of_copies(timeline, _longest_copies(run)).ranks)


def clocks_of(run: RunRecords) -> dict[int, RankClock]:
    """Return the clock of each rank. Only `CLOCK_KINDS` of its records are needed, and its first and last ones."""
    clocks = wall_clocks(run)
    if len({clocks[rank.rank].host for rank in run.ranks if rank.segments}) > 1:
        clocks = align(_timeline(run, clocks, kinds=CLOCK_KINDS))
    if run.info.imported:
        # A trace is short: its collectives bound an offset well, and a drift badly. So its durations stay as they are.
        clocks = {rank: replace(clock, corrections=_rigid(clock.corrections)) for rank, clock in clocks.items()}
    return clocks


def rank_timeline(rank: RankRecords, clock: RankClock) -> RankTimeline:
    """Put one rank on the axis of its clock."""
    return _rank_timeline(rank, clock, kinds=(), copied=False)


def _rigid(corrections: tuple[Offsets, ...]) -> tuple[Offsets, ...]:
    return tuple(offsets.rigid() for offsets in corrections)


def with_copies(timeline: Timeline, *, without: Collection[int] = ()) -> Timeline:
    """Add the copies of ranks that left no records in the run directory, `without` some."""
    missing = {*timeline.run.missing} - {*without}
    copies = _timeline_of_copies(timeline, [copy for copy in _longest_copies(timeline.run) if copy.rank in missing])
    if not copies.ranks:
        return timeline
    run, added = timeline.run, {rank.rank for rank in copies.ranks}
    return replace(
        timeline,
        run=replace(
            run,
            ranks=tuple(sorted((*run.ranks, *copies.run.ranks), key=lambda rank: rank.rank)),
            missing=tuple(rank for rank in run.missing if rank not in added),
        ),
        ranks=tuple(sorted((*timeline.ranks, *copies.ranks), key=lambda rank: rank.rank)),
        clocks=tuple(sorted((*timeline.clocks, *copies.clocks), key=lambda clock: clock.rank)),
    )


def with_peers(timeline: Timeline, copies: Sequence[RankRecords]) -> Timeline:
    """Add ranks of other hosts by copies of their collectives. The timeline's own ranks, of one host, keep their axis.

    Copies of own ranks only align the clocks: they reach further back than a timeline of few steps.
    """
    own = {rank.rank for rank in timeline.ranks}
    of_peers = [copy for copy in copies if copy.rank not in own]
    if {host_of(copy) for copy in of_peers} <= {clock.host for clock in timeline.clocks}:
        return _joined(timeline, _timeline_of_copies(timeline, of_peers))
    of_own = [copy for copy in copies if copy.rank in own]
    evidence, peers = (_timeline_of_copies(timeline, each, kinds=(Kind.COLLECTIVE,)) for each in (of_own, of_peers))
    clocks = align(_joined(evidence if evidence.ranks else timeline, peers))
    return _joined(timeline, _timeline(peers.run, clocks, kinds=(), copied=True))


def _joined(timeline: Timeline, copies: Timeline) -> Timeline:
    """The ranks of both, those of the timeline first: their host's clock is the reference."""
    run = replace(timeline.run, ranks=(*timeline.run.ranks, *copies.run.ranks))
    return replace(timeline, run=run, ranks=(*timeline.ranks, *copies.ranks), clocks=(*timeline.clocks, *copies.clocks))


def timelines_of_compared(run: RunRecords) -> Iterator[Timeline]:
    """The copies of each mismatch that an agent saw, on an axis of their own."""
    for copies in run.compared:
        yield build_copies(run, copies)


def build_copies(run: RunRecords, copies: Sequence[RankRecords]) -> Timeline:
    """Build a timeline of copies of a run's ranks, which lack the beginning. Only wall clocks align their hosts."""
    part = replace(run, ranks=tuple(copies), witnessed=(), compared=())
    return _timeline(part, wall_clocks(part), kinds=(), copied=True)


def _longest_copies(run: RunRecords) -> tuple[RankRecords, ...]:
    """The longest copy of each rank that is longer than the rank's own records."""
    last_ns = {rank.rank: _last_ns(rank) for rank in run.ranks}
    longest: dict[int, RankRecords] = {}
    for copy in (copy for host in run.witnessed for copy in host.ranks if copy.segments):
        if _last_ns(copy) > last_ns.get(copy.rank, 0):
            last_ns[copy.rank], longest[copy.rank] = _last_ns(copy), copy
    return tuple(longest[number] for number in sorted(longest))


def _timeline_of_copies(timeline: Timeline, copies: Sequence[RankRecords], *, kinds: tuple[Kind, ...] = ()) -> Timeline:
    """Build a timeline of these copies, on the axis of the run."""
    run = replace(timeline.run, ranks=tuple(copies))
    by_wall = wall_clocks(replace(run, ranks=(*timeline.run.ranks, *copies))) if copies else {}
    same_host = {clock.host: clock for clock in timeline.clocks}
    clocks = {
        copy.rank: replace(same_host.get(host_of(copy), by_wall[copy.rank]), rank=copy.rank) for copy in run.ranks
    }
    return _timeline(run, clocks, kinds=kinds, copied=True)


def _last_ns(rank: RankRecords) -> int:
    return max((last_instant_ns(segment.records) for segment in rank.segments), default=0)


def _timeline(
    run: RunRecords, clocks: Mapping[int, RankClock], *, kinds: tuple[Kind, ...], copied: bool = False
) -> Timeline:
    """Build a timeline of the records of these kinds, or of all records if `kinds` is empty."""
    ranks = tuple(
        _rank_timeline(rank, clocks[rank.rank], kinds=kinds, copied=copied) for rank in run.ranks if rank.segments
    )
    ranks = with_groups_between_jobs(ranks, world_size=run.info.world_size)
    even_windows(ranks)
    return Timeline(run=run, ranks=ranks, clocks=tuple(clocks[rank.rank] for rank in ranks))


def _rank_timeline(rank: RankRecords, clock: RankClock, *, kinds: tuple[Kind, ...], copied: bool) -> RankTimeline:
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
        last_ns=max(last_instant_ns(records) for records in threads.values()),
        observation=observation(rank.info.probes),
        since_ns=_held_since_ns(threads) if copied else None,
    )


def _held_since_ns(threads: Mapping[str, NDArray[np.void]]) -> int:
    """Start of what a copy holds. It has all records that end after the first end in it, so all that begin after it."""
    communicating = [records for records in threads.values() if (records["kind"] == Kind.COLLECTIVE).any()]
    ended = [records[(records["end_ns"] != OPEN) & (records["kind"] != Kind.CLOCK)] for records in communicating]
    return max((int(records["end_ns"].min()) for records in ended if len(records)), default=0)


def _aligned(rank: RankRecords, thread: str, clock: RankClock, *, kinds: tuple[Kind, ...]) -> NDArray[np.void]:
    """Copy the thread's records to the common axis. It is the only copy of them."""
    parts = [segment.records for segment in rank.segments if segment.thread == thread]
    if kinds:
        parts = [chosen(records, np.isin(records["kind"], kinds)) for records in parts]
    aligned = joined(parts) if parts else np.empty(0, dtype=RECORD_DTYPE)
    starts, ends = aligned["start_ns"], aligned["end_ns"]
    starts[:] = clock.on_axis(starts)
    ends[:] = np.where(ends == OPEN, OPEN, clock.on_axis(ends))
    in_order = bool(np.all(starts[1:] >= starts[:-1]))
    return aligned if in_order else chosen(aligned, np.argsort(starts, kind="stable"))


def _complete_steps(steps: NDArray[np.void]) -> tuple[Step, ...]:
    complete = steps[(steps["end_ns"] != OPEN) & (steps["flags"] & Flag.PARTIAL == 0)]
    flags = (Flag.GUESSED, Flag.BY_BACKWARD, Flag.DETAILED, Flag.REQUESTED, Flag.DEBUGGED)
    columns = (complete[name].tolist() for name in ("step", "start_ns", "end_ns", "value"))
    flagged = ((complete["flags"] & flag != 0).tolist() for flag in flags)
    return tuple(
        Step(
            number=number,
            start_ns=start_ns,
            end_ns=end_ns,
            own_ns=own_ns,
            guessed=guessed,
            by_backward=by_backward,
            detailed=detailed,
            requested=requested,
            debugged=debugged,
        )
        for number, start_ns, end_ns, own_ns, guessed, by_backward, detailed, requested, debugged in zip(
            *columns, *flagged, strict=True
        )
    )


def _open_records(rank: RankRecords, main: NDArray[np.void]) -> tuple[OpenRecord, ...]:
    """List the open intervals, without collectives that a later one on their channel has overtaken."""
    still_open = main[(main["end_ns"] == OPEN) & np.isin(main["kind"], INTERVALS)]
    last_ns = int(main["start_ns"].max(initial=0))
    overtaken = _overtaken(rank, still_open, main)
    return tuple(_open_record(rank, record, last_ns=last_ns) for record in still_open[~overtaken])


def _overtaken(rank: RankRecords, still_open: NDArray[np.void], main: NDArray[np.void]) -> NDArray[np.bool_]:
    """Mark open collectives after which another one on the same channel has ended.

    A channel is a group; for messages also the peer, tag and side. A collective that ended by an exception gives no
    evidence about earlier ones.
    """
    overtaken = np.zeros(len(still_open), dtype=bool)
    open_collectives = np.flatnonzero(still_open["kind"] == Kind.COLLECTIVE)
    ended = main[(main["kind"] == Kind.COLLECTIVE) & (main["end_ns"] != OPEN) & (main["flags"] & Flag.RAISED == 0)]
    channels, of = np.unique(_channels(rank, still_open[open_collectives]), axis=0, return_inverse=True)
    ended_channels = _channels(rank, ended)
    for number, channel in enumerate(channels):
        latest_ns = ended["start_ns"][(ended_channels == channel).all(axis=1)].max(initial=0)
        candidates = open_collectives[of.reshape(-1) == number]
        overtaken[candidates] = still_open["start_ns"][candidates] < latest_ns
    return overtaken


def _channels(rank: RankRecords, records: NDArray[np.void]) -> NDArray[np.int64]:
    """Return each collective's channel on this rank, one row each: group; for messages also peer, tag and side."""
    sends = [number for number, name in enumerate(rank.names) if name in SEND_OPERATIONS]
    direct = records["flags"] & Flag.POINT_TO_POINT > 0
    message = np.stack([records["peer"], records["tag"], np.isin(records["name"], sends)], axis=1, dtype=np.int64)
    return np.column_stack([records["group"], direct, np.where(direct[:, None], message, 0)]).astype(np.int64)


def _open_record(rank: RankRecords, record: np.void, *, last_ns: int) -> OpenRecord:
    """Describe an open record. A collective holds its thread if no record of the thread begins after it."""
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
