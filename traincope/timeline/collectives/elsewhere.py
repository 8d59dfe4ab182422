"""Collectives with members that have no records here: the agents of all hosts reduced them, or other runs have them.

Agents exchange sums, not records. A collective's identity is a hash of its group with all members, its operation, its
window and its count. Members that disagree about one of these never add up to one collective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints
from traincope.events import Flag, Kind
from traincope.timeline.intervals.numbering import UNKNOWN
from traincope.topology import Group

Hashes = NDArray[np.uint64]
NO_IDENTITY = 0
"""Identity of messages between two ranks, and of records whose group or operation is lost."""
_WINDOW, _SEQUENCE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd factors (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; xxHash)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Known collectives, in order of their identity."""

    identity: Hashes
    transfer_ns: Ints
    error_ns: Ints
    """Error of the clocks that the transfer includes; 0 if durations alone gave it."""
    splits: Bools
    """False: the clocks of the members' hosts are not known well enough."""

    @classmethod
    def nothing(cls) -> "Elsewhere":
        none = np.empty(0, dtype=np.int64)
        return cls(identity=none.astype(np.uint64), transfer_ns=none, error_ns=none, splits=none.astype(bool))

    def __len__(self) -> int:
        return len(self.identity)

    def find(self, identity: Hashes) -> Ints:
        """Return the position of each identity, UNKNOWN without one."""
        if not len(self):
            return np.full(len(identity), UNKNOWN, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.identity, identity), len(self) - 1)
        return np.where(self.identity[at] == identity, at, UNKNOWN)

    def of(self, at: Ints) -> "Elsewhere":
        """Return the values at these positions; zeros where UNKNOWN."""
        chosen = at != UNKNOWN

        def values(column: NDArray[Any]) -> NDArray[Any]:
            return np.append(column, np.zeros(1, dtype=column.dtype))[np.where(chosen, at, len(self))]

        return Elsewhere(
            identity=values(self.identity),
            transfer_ns=values(self.transfer_ns),
            error_ns=values(self.error_ns),
            splits=values(self.splits),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Meanings of a rank's numbers: of its operations and groups."""

    operations: Sequence[str]
    groups: Sequence[Group]
    observation: str
    """How the rank records collectives: ranks that record differently count differently."""


def identities(records: NDArray[np.void], names: Names) -> Hashes:
    """Return the identity of each COLLECTIVE or STALL record."""
    hashes = _in_windows(records, names, with_operations=True)
    counted = hashes + (records["sequence"].astype(np.uint64) + np.uint64(1)) * _SEQUENCE
    return np.where(hashes == NO_IDENTITY, hashes, counted)


def windows_of(records: NDArray[np.void], names: Names) -> Hashes:
    """Return a hash of each record's group and window, in which its members count their collectives."""
    return _in_windows(records, names, with_operations=False)


def _in_windows(records: NDArray[np.void], names: Names, *, with_operations: bool) -> Hashes:
    codes = records["group"].astype(np.int64) << 32 | records["name"] * np.int64(with_operations)
    distinct, at = np.unique(codes, return_inverse=True)
    digests = np.array(
        [
            _digest_of(names, code >> 32, code & 0xFFFFFFFF, with_operations=with_operations)
            for code in distinct.tolist()
        ],
        dtype=np.uint64,
    )
    shared = (records["flags"] & Flag.POINT_TO_POINT == 0) & np.isin(records["kind"], (Kind.COLLECTIVE, Kind.STALL))
    digest = np.where(shared, digests[at], np.uint64(NO_IDENTITY)) if len(records) else digests
    windows = digest + (records["window"].astype(np.uint64) + np.uint64(1)) * _WINDOW
    return np.where(digest == NO_IDENTITY, digest, windows)


def _digest_of(names: Names, group: int, operation: int, *, with_operations: bool) -> int:
    if group >= len(names.groups) or operation >= len(names.operations):
        return NO_IDENTITY
    known = names.groups[group]
    if not known.ranks and not known.between_jobs:
        return NO_IDENTITY
    return _digest(known.key, known.ranks, names.operations[operation] if with_operations else "", names.observation)


@lru_cache(maxsize=1_024)
def _digest(key: str, ranks: tuple[int, ...], operation: str, observation: str) -> int:
    digest = blake2b(digest_size=8)
    for word in (key, operation, observation):
        digest.update(len(word).to_bytes(8, "little") + word.encode())
    digest.update(np.sort(np.array(ranks, dtype=np.int64)).tobytes())
    return int.from_bytes(digest.digest(), "little")


@lru_cache(maxsize=1_024)
def members_hash(ranks: tuple[int, ...]) -> int:
    """Hash of a set of ranks: the sum of the ranks' own hashes. Sets without a common rank add up to their union."""
    mixed = np.array(ranks, dtype=np.uint64) * _WINDOW + _SEQUENCE  # splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
