"""Histories: the latest collectives of ranks, joined from successive copies.

A copy holds the last seconds of a rank. The comparison of hosts and the split of waits need collectives of both sides
for as long as each side's copies overlap, so the copies of a rank are joined, up to a bound.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError
from traincope.events import Flag, Kind, Phase
from traincope.live.peers.copies.copying import RankCopy, lines_of
from traincope.live.window import CopiedRank
from traincope.store import RankRecords, SegmentRecords
from traincope.store.job.manifests import parse_rank_info
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, RANK_FILE, SEGMENT, segment_path, thread_and_index
from traincope.store.lines import dense_groups, dense_names, parse, parse_numbered
from traincope.store.segments.joining import joined
from traincope.store.segments.segments import HEADER_BYTES, RECORD_DTYPE, plausible, segment_content
from traincope.topology import Host

MAX_RECORDS = 2_048
"""Newest records of a thread of a rank."""


class Histories:
    """Histories of this host's ranks and of witnessed ranks. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[Host, dict[int, _History]] = {}
        self.num_copies = 0
        """Number of copies that were added."""

    def add(self, copy: RankCopy, *, host: Host) -> None:
        """Add a copy of a rank's records. The caller bounds the number of a host's ranks."""
        with self._lock:
            self.num_copies += 1
            self._of.setdefault(host, {}).setdefault(copy.rank, _History()).add(copy)

    def forget(self, host: Host) -> None:
        """Drop what is kept of a host's ranks."""
        with self._lock:
            self._of.pop(host, None)

    @property
    def hosts(self) -> frozenset[Host]:
        with self._lock:
            return frozenset(self._of)

    def ranks(self) -> dict[int, CopiedRank]:
        """Rank -> its history. Ranks with damaged cards are left out."""
        ranks: dict[int, CopiedRank] = {}
        with self._lock:
            for host, histories in self._of.items():
                for number, history in histories.items():
                    records = history.records()
                    if records is not None and (records.rank, records.info.host) == (number, host):
                        ranks[number] = CopiedRank(records=records, arrived_ns=history.arrived_ns)
        return ranks

    def copies(self) -> list[RankCopy]:
        """All histories in the form of rank directories."""
        with self._lock:
            return [history.copy(rank) for histories in self._of.values() for rank, history in histories.items()]


@dataclass(slots=True)
class _History:
    """Latest collectives of one rank, with the stalls for its messages, its steps and backward phases."""

    card: bytes = b""
    names: dict[int, Any] = field(default_factory=dict)
    groups: dict[int, Any] = field(default_factory=dict)
    threads: dict[str, NDArray[np.void]] = field(default_factory=dict)
    arrived_ns: int = 0

    def add(self, copy: RankCopy) -> None:
        self.arrived_ns = monotonic_ns()
        self.card = copy.files.get(RANK_FILE, self.card)
        new = {
            thread_and_index(Path(name))[0]: np.frombuffer(content[HEADER_BYTES:], dtype=RECORD_DTYPE)
            for name, content in copy.files.items()
            if name.endswith(SEGMENT) and len(content) % RECORD_DTYPE.itemsize == HEADER_BYTES % RECORD_DTYPE.itemsize
        }
        new = {thread: records[plausible(records) & _is_kept(records)] for thread, records in new.items()}
        both = {thread: joined(self.threads.get(thread, records[:0]), records) for thread, records in new.items()}
        both = {thread: records[-MAX_RECORDS:] for thread, records in (self.threads | both).items()}
        self.threads = new if _lacks_some(both.values()) else both
        used = np.unique(np.concatenate([records["name"] for records in self.threads.values()] or [np.empty(0)]))
        names = self.names | _numbered(copy.files.get(NAMES_FILE, b""))
        self.names = {number: names[number] for number in used.tolist() if number in names}
        self.groups |= _numbered(copy.files.get(GROUPS_FILE, b""))

    def records(self) -> RankRecords | None:
        """None for a damaged card."""
        raw = parse(self.card.decode(errors="replace"))
        try:
            info = parse_rank_info(raw if isinstance(raw, dict) else {}, path=Path(RANK_FILE), signals={})
        except RunDirectoryError:
            return None
        return RankRecords(
            attempt=0,
            info=info,
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


def _is_kept(records: NDArray[np.void]) -> NDArray[np.bool_]:
    kinds = records["kind"]
    backward = (kinds == Kind.PHASE) & (records["phase"] == Phase.BACKWARD)
    of_message = (kinds == Kind.STALL) & (records["flags"] & Flag.POINT_TO_POINT > 0)
    return np.asarray(backward | of_message | np.isin(kinds, (Kind.COLLECTIVE, Kind.STEP, Kind.CLOCK)))


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
