"""One rank as the agent follows it: its events as they arrive, and its state."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import MissingDependencyError, RunDirectoryError
from traincope.events import NO_STEP, OPEN, Flag, Kind, Phase
from traincope.live.node.tail import SegmentTail, num_begun
from traincope.live.window import RankState, RankStatus
from traincope.store import RECORD_DTYPE, RankRecords, SegmentRecords
from traincope.store.job.attempts import began_wall_ns, wall_offset_ns
from traincope.store.job.manifests import RankInfo, read_rank_info
from traincope.store.layout import (
    COMPACTED,
    DETAILS_FILE,
    GROUPS_FILE,
    NAMES_FILE,
    SEGMENT,
    record_files,
    thread_and_index,
)
from traincope.store.lines import dense_groups, dense_names, read_numbered
from traincope.store.segments.compacted import holds, read_compacted
from traincope.store.segments.segments import last_instant_ns, last_progress_ns
from traincope.store.side_tables.rows import Row, read_rows
from traincope.timeline.collectives.elsewhere import Names
from traincope.timeline.observation import observation
from traincope.topology import Group

logger = logging.getLogger(__name__)

MAIN = "main"
COUNTED_STEPS = 2
"""Number of steps with counted FLOPs to keep. They stand for the other steps."""
NEEDED_KINDS = (Kind.EVENT, Kind.FLOPS)
NEEDED_PHASES = (Phase.CHECKPOINT_STALL, Phase.EVALUATION)


def needed_compacted_records(directory: Path) -> NDArray[np.void]:
    """Events that an agent still needs from segments that an earlier agent compacted, in order of start.

    A restarted agent, or the page of a running job, reads them once. Every window needs a reading of the clocks and the
    counted FLOPs. Counters and the job's time continue from the events and the evaluation and checkpoint phases. Empty
    without pyarrow; what cannot be read is skipped.
    """
    paths: list[Path] = []
    with suppress(PermissionError):
        paths += [path for path in record_files(directory) if path.suffix == COMPACTED]
    joined = np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *_needed_parts(paths)])
    in_time: NDArray[np.void] = joined[np.argsort(joined["start_ns"], kind="stable")]
    return in_time


def _needed_parts(paths: list[Path]) -> Iterator[NDArray[np.void]]:
    has_clock = False
    for path in paths:
        try:
            if not has_clock or holds(path, kinds=NEEDED_KINDS, phases=NEEDED_PHASES):
                records = read_compacted(path).records
                yield records[_needed(records)]
                has_clock = True
        except (RunDirectoryError, MissingDependencyError):
            continue


def _needed(records: NDArray[np.void]) -> NDArray[np.bool_]:
    kinds = records["kind"]
    counted = records["step"][kinds == Kind.FLOPS]
    logged = (kinds == Kind.SCALAR) & np.isin(records["step"], counted)
    is_event = np.isin(kinds, (*NEEDED_KINDS, Kind.CLOCK)) | _marked(records)
    needed: NDArray[np.bool_] = is_event | logged
    return needed


def _marked(records: NDArray[np.void]) -> NDArray[np.bool_]:
    on_host = np.isin(records["kind"], (Kind.PHASE, Kind.ACTION)) & (records["flags"] & Flag.DEVICE == 0)
    marked: NDArray[np.bool_] = on_host & np.isin(records["phase"], NEEDED_PHASES)
    return marked


class RankTail:
    """Events of one rank that are not yet released, and released events that are still needed."""

    def __init__(self, directory: Path, *, attempt: int) -> None:
        """Raises RunDirectoryError if the rank's card cannot be read."""
        self.directory = directory
        self.attempt = attempt
        self.info: RankInfo = read_rank_info(directory)
        self.segments: dict[tuple[str, int], SegmentTail] = {}
        self.rows = read_rows(directory, rank=self.info.coord.rank)
        """Rows of an earlier agent."""
        self.done = max((row.step for row in self.rows), default=NO_STEP)
        """Last step that has a row."""
        self.odd_steps = {row.step for row in self.rows if row.anomalous}
        self._state = RankState.ALIVE
        self._running: bool | None = None
        self._began_wall_ns: int | None = None
        self.num_records = self.num_dropped = self.last_record_ns = 0
        self.last_progress_ns = 0
        """The last record of the training's work, on any thread."""
        self._marked = NO_STEP
        """Last step whose end is marked on the compute stream. Marks come in order."""
        self._awaits_marks = "uuid" in self.info.device
        """True if the rank's GPU may mark its next steps. It did mark the latest ones, or no step is done yet."""
        self._finished: set[tuple[str, int]] = set()
        """Segments that were read to their end and released."""
        before = needed_compacted_records(directory)
        self._clock = before[before["kind"] == Kind.CLOCK][:1]
        """First reading of both clocks. All windows use it, so that an instant has the same time in all of them."""
        self._pinned = before[before["kind"] != Kind.CLOCK]
        """Released events that are still needed. Events of an earlier agent stay here until the first release."""
        self._names: tuple[str, ...] = ()
        self._groups: tuple[Group, ...] = ()
        self._details: dict[int, dict[str, Any]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def rank(self) -> int:
        return self.info.coord.rank

    def read(self, *, now_ns: int) -> None:
        """Read new events. A segment that vanished keeps what was read of it; a damaged one is skipped.

        Raises OSError, RunDirectoryError.
        """
        self.info = read_rank_info(self.directory)
        self._state = self._current_state()  # first: once a rank is over, all its events can be read
        self._find_segments()
        for tail in list(self.segments.values()):
            try:
                self._count_records(tail.read(now_ns=now_ns))
            except FileNotFoundError:
                continue
            except RunDirectoryError as damage:
                logger.warning("%s", damage)
                self.forget(tail)
        if self._began_wall_ns is None:
            self._began_wall_ns = began_wall_ns(self.directory)
        self._read_words()  # last: a word is written before the first event that has it

    def status(self) -> RankStatus:
        return RankStatus(
            rank=self.rank,
            info=self.info,
            state=self._state,
            began_wall_ns=self._began_wall_ns,
            last_record_ns=self.last_record_ns,
            last_record_wall_ns=self.last_record_ns + wall_offset_ns(self._clock),
            num_records=self.num_records,
            num_dropped=self.num_dropped,
        )

    def records(self) -> RankRecords:
        """All held events, in the form that `read_run` returns."""
        kept = SegmentRecords(thread=MAIN, index=0, records=np.concatenate([self._clock, self._pinned]), lost_bytes=0)
        return RankRecords(
            attempt=self.attempt,
            info=self.info,
            names=self._names,
            groups=self._groups,
            segments=(kept, *(_without_clocks(self.segments[key].segment) for key in sorted(self.segments))),
            details=self._details,
            problems=(),
            running=self._running,
        )

    @property
    def groups(self) -> tuple[Group, ...]:
        return self._groups

    def names_of_calls(self) -> Names:
        """Meanings of the numbers in its collectives."""
        return Names(operations=self._names, groups=self._groups, observation=observation(self.info.probes))

    def main(self) -> NDArray[np.void]:
        """Events of the training thread that are held."""
        return self._held(MAIN)

    def finished_steps(self) -> NDArray[np.void]:
        """STEP events of complete steps that are held."""
        held = self.main()
        complete = (held["kind"] == Kind.STEP) & (held["end_ns"] != OPEN) & (held["flags"] & Flag.PARTIAL == 0)
        steps: NDArray[np.void] = held[complete]
        return steps

    def unmarked_steps(self) -> frozenset[int]:
        """Finished steps that are not done, and whose marks on the compute stream may still come."""
        steps = self.finished_steps() if self._awaits_marks else self.main()[:0]
        awaited = steps["step"] > max(self.done, self._marked)
        return frozenset(steps["step"][awaited].tolist())

    def start_of_done_ns(self) -> int:
        """Start of the last step that has a row; 0 before the first row."""
        steps = self.finished_steps()
        return int(steps["start_ns"][steps["step"] <= self.done].max(initial=0))

    def mark_done(self, rows: Sequence[Row]) -> None:
        """Mark the steps of these rows as done. Those whose marks did not come are the last that wait for theirs."""
        late = self.unmarked_steps()
        self._awaits_marks = self._awaits_marks and not any(row.step in late for row in rows)
        self.done = max((row.step for row in rows), default=self.done)
        self.odd_steps.update(row.step for row in rows if row.anomalous)

    def is_running(self) -> bool | None:
        """Check the rank's process; None if this process cannot know."""
        return None if self.info.process is None else self.info.process.is_running()

    def position(self) -> tuple[int, int]:
        """Newest segment of the training thread and its number of events, without reading them. It changes whenever
        the thread begins an event.
        """
        try:
            newest = max(self.directory.glob(f"{MAIN}-*{SEGMENT}"), key=thread_and_index)
            return thread_and_index(newest)[1], num_begun(newest)
        except (OSError, ValueError):
            return -1, 0

    def open_since_ns(self) -> int | None:
        """Start of the oldest collective that is still open."""
        parts = [tail.records for tail in self.segments.values()]
        open_starts = [part["start_ns"][(part["kind"] == Kind.COLLECTIVE) & (part["end_ns"] == OPEN)] for part in parts]
        return min((int(starts.min()) for starts in open_starts if len(starts)), default=None)

    def release(self, before_ns: int) -> None:
        """Release all that ended before `before_ns`, except what later windows need."""
        given_up = [tail.release(before_ns) for key, tail in sorted(self.segments.items()) if key[0] == MAIN]
        for (thread, _), tail in self.segments.items():
            if thread != MAIN:
                tail.release(before_ns)
        self._pinned = _pinned(np.concatenate([self._pinned, *given_up]))

    @property
    def num_held(self) -> int:
        return sum(len(tail.records) for tail in self.segments.values())

    def give_up(self, before_ns: int) -> None:
        """Skip the current step: it has more events than may be held, and gets no row."""
        held = self.main()
        self.done = int(held["step"][held["kind"] == Kind.STEP].max(initial=self.done))
        self.release(before_ns)

    def full_segments(self) -> list[SegmentTail]:
        """Segments without held events that have a successor in their thread, oldest first."""
        newest = dict(sorted(self.segments))
        return [
            tail
            for (thread, index), tail in sorted(self.segments.items())
            if not len(tail.records) and (index < newest[thread])
        ]

    def forget(self, tail: SegmentTail) -> None:
        """Stop reading a segment."""
        del self.segments[tail.thread, tail.index]
        self._finished.add((tail.thread, tail.index))

    def _current_state(self) -> RankState:
        """State of the rank. A rank is gone only if its process is known not to run."""
        self._running = self.is_running() if self.info.ending is None else None
        if self._running is False:
            self.info = read_rank_info(self.directory)  # it may have written its end since the first read
        if self.info.ending is not None:
            self._running = None
            return RankState.ENDED
        return RankState.GONE if self._running is False else RankState.ALIVE

    def _held(self, thread: str) -> NDArray[np.void]:
        parts = [self.segments[key].records for key in sorted(self.segments) if key[0] == thread]
        return np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *parts])

    def _find_segments(self) -> None:
        for path in self.directory.glob(f"*{SEGMENT}"):
            try:
                tail = SegmentTail(path)
            except RunDirectoryError:
                continue
            key = tail.thread, tail.index
            if key not in self._finished:
                self.segments.setdefault(key, tail)

    def _count_records(self, new: NDArray[np.void]) -> None:
        if not len(new):
            return
        if not len(self._clock):
            self._clock = new[new["kind"] == Kind.CLOCK][:1]
        self.num_records += len(new)
        self.num_dropped += int(new["value"][new["kind"] == Kind.DROPPED].sum())
        self.last_record_ns = max(self.last_record_ns, last_instant_ns(new))
        marked = new["step"][(new["kind"] == Kind.STEP) & (new["flags"] & Flag.DEVICE > 0)]
        if len(marked):
            self._marked, self._awaits_marks = max(self._marked, int(marked.max())), True
        self.last_progress_ns = max(self.last_progress_ns, last_progress_ns(new, raised=False))

    def _read_words(self) -> None:
        """Read names, groups and details again if their files have grown."""
        if self._has_grown(NAMES_FILE):
            self._names = dense_names(self._lines(NAMES_FILE))
        if self._has_grown(GROUPS_FILE):
            self._groups = dense_groups(self._lines(GROUPS_FILE))
        if self._has_grown(DETAILS_FILE):
            self._details = {n: value for n, value in self._lines(DETAILS_FILE).items() if isinstance(value, dict)}

    def _has_grown(self, name: str) -> bool:
        path = self.directory / name
        size = path.stat().st_size if path.exists() else 0
        before, self._sizes[name] = self._sizes.get(name, 0), size
        return size != before

    def _lines(self, name: str) -> dict[int, Any]:
        return read_numbered(self.directory / name, version=self.info.version)


def over(ranks: Iterable[RankStatus]) -> bool:
    """True if no rank will write anything more."""
    return all(rank.over for rank in ranks)


def _without_clocks(segment: SegmentRecords) -> SegmentRecords:
    return replace(segment, records=segment.records[segment.records["kind"] != Kind.CLOCK])


def _pinned(released: NDArray[np.void]) -> NDArray[np.void]:
    """FLOPs of the newest counted steps, and values logged in these and in the latest steps."""
    flops = released[released["kind"] == Kind.FLOPS]
    counted = np.unique(flops["step"])[-COUNTED_STEPS:]
    recent = int(released["step"].max(initial=0)) - 1
    logged = released[released["kind"] == Kind.SCALAR]
    logged = logged[np.isin(logged["step"], counted) | (logged["step"] >= recent)]
    return np.concatenate([flops[np.isin(flops["step"], counted)], logged])
