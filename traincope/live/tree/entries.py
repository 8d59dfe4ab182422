"""Entries: what a set of ranks contributes to collectives, as sums that add up in any order.

An entry takes 83 bytes, whatever the number of its ranks.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from traincope.errors import ServerError
from traincope.events import OPEN, Flag, Kind
from traincope.store import RankRecords
from traincope.timeline.clocks.offsets import Offsets
from traincope.timeline.collectives.elsewhere import NO_IDENTITY, Names, identities, members_hash, windows_of
from traincope.timeline.observation import observation

ENTRY = np.dtype(
    [
        ("identity", "<u8"),
        ("window", "<u8"),  # group and window, in which members count their collectives
        ("members", "<u8"),  # hash of the ranks that contributed
        ("all_members", "<u8"),  # hash of the group's ranks
        ("shortest_ns", "<i8"),
        ("latest_start_ns", "<i8"),
        ("earliest_end_ns", "<i8"),
        ("error_ns", "<i8"),  # largest error of a contributing host's clock
        ("count_low", "<i4"),  # torch's own count plus 1 at the first collective of a window
        ("count_high", "<i4"),  # 0 at others
        ("seen_late", "u1"),  # the end of some part is only bounded
        ("comparable", "u1"),  # the clocks' errors are known
        ("flaw", "u1"),  # the sum must not be used
    ]
)
Entries = NDArray[np.void]
MAX_ENTRIES = 4_096
"""Entries of one message: 332 KiB."""
NO_COUNT = np.iinfo(np.int32).max
NOTHING = np.empty(0, dtype=ENTRY)


class OwnParts:
    """Parts of this host's ranks in collectives, each once."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, str], NDArray[np.int64]] = {}
        self._with_messages: dict[int, set[int]] = {}

    def new(self, rank: RankRecords, names: Names, *, own: Collection[int]) -> Entries:
        """Return the entries of the ended collectives that are not taken yet. `own`: the ranks of this host.

        Groups of these alone need no other host. `rank`: its latest records. Later ones overlap with them.
        """
        parts, with_messages = [], self._with_messages.setdefault(rank.rank, set())
        for segment in rank.segments:
            direct = segment.records["flags"] & Flag.POINT_TO_POINT > 0
            with_messages.update(np.unique(segment.records["group"][direct]).tolist())
            ended = _ended(segment.records, names, own)
            begins, key = ended["start_ns"], (rank.rank, segment.thread)
            new = ended[~np.isin(begins, self._taken.get(key, begins[:0]))]
            self._taken[key] = begins.copy()
            if len(new):
                parts.append(_entries(rank.rank, new, names, with_messages=with_messages))
        return merged(np.concatenate([NOTHING, *parts]))


def names_of(rank: RankRecords) -> Names:
    return Names(operations=rank.names, groups=rank.groups, observation=observation(rank.info.probes))


def _ended(records: NDArray[np.void], names: Names, own: Collection[int]) -> NDArray[np.void]:
    here = frozenset(own)
    beyond = [number for number, group in enumerate(names.groups) if not here.issuperset(group.ranks)]
    ended = (records["end_ns"] != OPEN) & (records["flags"] & (Flag.RAISED | Flag.POINT_TO_POINT) == 0)
    chosen: NDArray[np.void] = records[ended & (records["kind"] == Kind.COLLECTIVE) & np.isin(records["group"], beyond)]
    return chosen


def _entries(rank: int, records: NDArray[np.void], names: Names, *, with_messages: Collection[int]) -> Entries:
    """`with_messages`: groups on which torch also counts messages between two ranks, so that members differ."""
    identity = identities(records, names)
    known = identity != NO_IDENTITY
    records, identity = records[known], identity[known]
    groups, at = np.unique(records["group"], return_inverse=True)
    wholes = np.array([members_hash(names.groups[number].ranks) for number in groups.tolist()], dtype=np.uint64)
    entries = np.zeros(len(records), dtype=ENTRY)
    entries["identity"], entries["window"] = identity, windows_of(records, names)
    entries["members"], entries["all_members"] = members_hash((rank,)), wholes[at]
    entries["shortest_ns"] = records["end_ns"] - records["start_ns"]
    entries["latest_start_ns"], entries["earliest_end_ns"] = records["start_ns"], records["end_ns"]
    first = (records["tag"] > 0) & ~np.isin(records["group"], list(with_messages))
    entries["count_low"] = np.where(first, records["tag"], NO_COUNT)
    entries["count_high"] = np.where(first, records["tag"], 0)
    entries["seen_late"] = records["flags"] & Flag.DONE_BEFORE_WAIT > 0
    entries["comparable"] = True
    return entries


def merged(entries: Entries) -> Entries:
    """Add up the entries of each identity. Sums that cannot belong to one collective get a flaw."""
    if len(entries) < 2:
        return entries
    identity, first, at = np.unique(entries["identity"], return_index=True, return_inverse=True)
    result = entries[first].copy()
    if len(identity) == len(entries):
        return result
    result["members"] = 0
    np.add.at(result["members"], at, entries["members"])
    for name in ("shortest_ns", "earliest_end_ns", "count_low", "comparable"):
        np.minimum.at(result[name], at, entries[name])
    for name in ("latest_start_ns", "error_ns", "count_high", "seen_late", "flaw"):
        np.maximum.at(result[name], at, entries[name])
    differs = (entries["all_members"] != result["all_members"][at]) | (entries["window"] != result["window"][at])
    np.maximum.at(result["flaw"], at, differs.astype(np.uint8))
    return result


def on_clock(entries: Entries, offsets: Offsets | None) -> Entries:
    """Convert the times to another clock; without offsets they do not compare any more."""
    result = entries.copy()
    if offsets is None:
        result["comparable"] = False
        return result
    error_ns = np.maximum(offsets.bounds_ns(entries["latest_start_ns"]), offsets.bounds_ns(entries["earliest_end_ns"]))
    for name in ("latest_start_ns", "earliest_end_ns"):
        result[name] = offsets.convert(entries[name])
    result["error_ns"] += error_ns
    return result


def read_entries(payload: bytes) -> Entries:
    """Raises ServerError for bytes that are no entries, or too many."""
    if len(payload) % ENTRY.itemsize or len(payload) > MAX_ENTRIES * ENTRY.itemsize:
        raise ServerError("sums of collectives have another size than entries")
    return merged(np.frombuffer(payload, dtype=ENTRY))
