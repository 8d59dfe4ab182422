"""Comparison of this host's ranks with witnessed ranks of other hosts: do the members of a group disagree?

A witness copy holds the last seconds of a rank. Successive copies add up to a history of the rank's latest collectives,
which the analysis of mismatches compares. The histories that show the first mismatch are kept in the run directory: the
watchdog announces it, and a report finds it there.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.faults.hangs.hangs import completed_mismatches
from traincope.errors import RunDirectoryError
from traincope.events import Flag, Kind, Phase
from traincope.live.peers.copying import RankCopy, lines_of
from traincope.store import RankRecords, RunRecords, SegmentRecords
from traincope.store.job.manifests import RunInfo, parse_rank_info, read_run_info
from traincope.store.job.witness import compared_directory
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE, SEGMENT, segment_path, thread_and_index
from traincope.store.lines import dense_groups, dense_names, parse, parse_numbered
from traincope.store.segments.segments import HEADER_BYTES, RECORD_DTYPE, plausible, segment_content
from traincope.timeline import build_copies
from traincope.topology import Host
from traincope.whole_files import written_aside

logger = logging.getLogger(__name__)

MAX_RECORDS = 2_048
"""Newest records of each thread in a history: 112 KiB."""


class Comparer:
    """Histories of this host's ranks and of witnessed ranks. Any thread may use it."""

    def __init__(self, attempt: Path, *, host: Host) -> None:
        """`host`: this one."""
        self._attempt, self._host = attempt, host
        self._lock = threading.Lock()
        self._histories: dict[Host, dict[int, _History]] = {}
        self._directory = compared_directory(attempt, host)
        self._done = self._directory.exists()
        self._has_news = False

    @property
    def needs_copies(self) -> bool:
        """True while there are ranks of another host to compare with."""
        with self._lock:
            return not self._done and any(host != self._host for host in self._histories)

    def add(self, copy: RankCopy, *, host: Host) -> None:
        """Add a copy of a rank of this host or of a witnessed one, whose number of ranks the witness bounds."""
        if self._done or not copy.has_records:
            return
        with self._lock:
            history = self._histories.setdefault(host, {}).setdefault(copy.rank, _History())
            history.add(copy)
            self._has_news = True

    def compare(self) -> None:
        """Compare what is new, and keep the histories if they show a mismatch between hosts.

        It can take seconds for many ranks. Copies can be added during that time.
        """
        if not (self._has_news and self.needs_copies):
            return
        with self._lock:
            self._has_news = False
            ranks = {rank: records for host in self._histories for rank, records in self._records(host).items()}
        try:
            info = read_run_info(self._attempt.parent)
        except RunDirectoryError:
            return  # the agent reports it
        if self._shows_mismatch(ranks, info):
            with self._lock:
                self._keep()

    def _records(self, host: Host) -> dict[int, RankRecords]:
        records = {}
        for rank, history in self._histories[host].items():
            try:
                records[rank] = history.records()
            except RunDirectoryError:
                continue  # a damaged card
        return records

    def _shows_mismatch(self, ranks: Mapping[int, RankRecords], info: RunInfo) -> bool:
        """True if ranks of several hosts disagree. The node's agent finds mismatches within this host by itself."""
        run = RunRecords(
            path=self._attempt.parent,
            info=info,
            ranks=tuple(ranks[rank] for rank in sorted(ranks)),
            attempts=1,
            missing=(),
            problems=(),
        )
        timeline = build_copies(run, run.ranks)
        hosts = {rank: records.info.host for rank, records in ranks.items()}
        involved = ({hosts[rank] for rank in mismatch.calls} for mismatch in completed_mismatches(timeline))
        return any(len(each) > 1 and self._host in each for each in involved)

    def _keep(self) -> None:
        self._done = True
        try:
            self._directory.parent.mkdir(parents=True, exist_ok=True)
            with written_aside(self._directory) as directory:
                for histories in self._histories.values():
                    for rank, history in histories.items():
                        history.copy(rank).write(directory / f"rank-{rank:05d}")
        except OSError as error:
            logger.warning("the records of a mismatch could not be kept: %s", error)
        self._histories = {}


@dataclass(slots=True)
class _History:
    """Latest collectives of one rank, with its steps and backward phases."""

    card: bytes = b""
    names: dict[int, Any] = field(default_factory=dict)
    groups: dict[int, Any] = field(default_factory=dict)
    threads: dict[str, NDArray[np.void]] = field(default_factory=dict)

    def add(self, copy: RankCopy) -> None:
        self.card = copy.files.get(RANK_FILE, self.card)
        new = {
            thread_and_index(Path(name))[0]: np.frombuffer(content[HEADER_BYTES:], dtype=RECORD_DTYPE)
            for name, content in copy.files.items()
            if name.endswith(SEGMENT) and len(content) % RECORD_DTYPE.itemsize == HEADER_BYTES % RECORD_DTYPE.itemsize
        }
        new = {thread: records[plausible(records) & _is_compared(records)] for thread, records in new.items()}
        joined = {thread: _joined(self.threads.get(thread, records[:0]), records) for thread, records in new.items()}
        joined = {thread: records[-MAX_RECORDS:] for thread, records in (self.threads | joined).items()}
        self.threads = new if _lacks_some(joined.values()) else joined
        used = np.unique(np.concatenate([records["name"] for records in self.threads.values()] or [np.empty(0)]))
        names = self.names | _numbered(copy.files.get(NAMES_FILE, b""))
        self.names = {number: names[number] for number in used.tolist() if number in names}
        self.groups |= _numbered(copy.files.get(GROUPS_FILE, b""))

    def records(self) -> RankRecords:
        """Raises RunDirectoryError for a damaged card."""
        raw = parse(self.card.decode(errors="replace"))
        return RankRecords(
            attempt=0,
            info=parse_rank_info(raw if isinstance(raw, dict) else {}, path=Path(RANK_FILE), signals={}),
            names=dense_names(self.names),
            groups=dense_groups(self.groups),
            segments=tuple(
                SegmentRecords(thread=thread, index=0, records=records, lost_bytes=0)
                for thread, records in self.threads.items()
            ),
            problems=(),
        )

    def copy(self, rank: int) -> RankCopy:
        """The history in the form of a rank directory."""
        segments = {
            segment_path(Path(), thread=thread, index=0).name: segment_content(records)
            for thread, records in self.threads.items()
        }
        side = {NAMES_FILE: lines_of(self.names), GROUPS_FILE: lines_of(self.groups)}
        return RankCopy(rank=rank, files={RANK_FILE: self.card, **side, **segments})


def _numbered(lines: bytes) -> dict[int, Any]:
    return parse_numbered(lines.decode(errors="replace").split("\n"))


def _is_compared(records: NDArray[np.void]) -> NDArray[np.bool_]:
    backward = (records["kind"] == Kind.PHASE) & (records["phase"] == Phase.BACKWARD)
    return np.asarray(backward | np.isin(records["kind"], (Kind.COLLECTIVE, Kind.STEP, Kind.CLOCK)))


def _lacks_some(threads: Iterable[NDArray[np.void]]) -> bool:
    """True if collectives are missing in between: copies did not arrive, or did not hold all of 5 seconds."""
    records = np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *threads])
    counted = records[(records["kind"] == Kind.COLLECTIVE) & (records["flags"] & Flag.POINT_TO_POINT == 0)]
    windows = counted["group"].astype(np.int64) << 32 | counted["window"]
    for window in np.unique(windows):
        counts = counted["sequence"][windows == window]
        if len(counts) != int(counts.max()) - int(counts.min()) + 1:
            return True
    return False


def _joined(before: NDArray[np.void], new: NDArray[np.void]) -> NDArray[np.void]:
    """The records of both in order of start. The new form of a record, which may have ended since, replaces the old."""
    replaced = np.isin(_begins(before), _begins(new))
    both = np.concatenate([before[~replaced], new])
    joined: NDArray[np.void] = both[np.argsort(both["start_ns"], kind="stable")]
    return joined


def _begins(records: NDArray[np.void]) -> NDArray[np.int64]:
    """Start and kind of each record of a thread: no two have the same."""
    return np.asarray(records["start_ns"] * (max(Kind) + 1) + records["kind"])
