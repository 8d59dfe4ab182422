"""Chain of copies of one rank: the newest one, and earlier ones that touch, for a minute or less.

A copy holds the last 5 seconds. A host that ships its records may be lost between two rounds of shipping, so its
witnesses keep what followed the round before.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.live.peers.copies.copying import RankCopy, lines_of
from traincope.store.layout import GROUPS_FILE, NAMES_FILE, SEGMENT, segment_path, thread_and_index
from traincope.store.lines import parse_numbered
from traincope.store.segments.joining import held_since_ns
from traincope.store.segments.segments import (
    HEADER_BYTES,
    RECORD_DTYPE,
    SegmentRecords,
    is_cut,
    last_instant_ns,
    plausible,
)

MAX_COPIES = 16
MAX_BYTES = 4 << 20
"""Bound of a rank's records. With 3,000 records per second these are 25 seconds, more than from one round of shipping
to the next.
"""
MAX_WORDS = 4_096
"""Number of names, and of groups, that are known at once; each file of them is bounded by `copying.lines_of`."""


class Chain:
    """Chain of one rank on the disk of its witness."""

    def __init__(self) -> None:
        self._index = 0
        self._sizes: dict[int, int] = {}
        """Index of a copy -> its bytes, the oldest first."""
        self._last_ns = self._kept_until_ns = 0
        """Last instants of the newest copy, and of the one before it in the chain."""
        self._words: dict[str, dict[int, Any]] = {NAMES_FILE: {}, GROUPS_FILE: {}}

    def write(self, copy: RankCopy, directory: Path) -> None:
        """Write a copy into a rank directory: over the newest one if it touches the one before that, else after it.
        Raises OSError.
        """
        segments = {name: content for name, content in copy.files.items() if name.endswith(SEGMENT)}
        if segments:
            self._place(segments)
        numbered = {
            segment_path(Path(), thread=thread_and_index(Path(name))[0], index=self._index).name: content
            for name, content in segments.items()
        }
        others = {
            name: self._with_earlier(name, content) for name, content in copy.files.items() if name not in segments
        }
        RankCopy(rank=copy.rank, files={**others, **numbered}).write(directory)
        for path in directory.glob(f"*{SEGMENT}"):
            if segments and thread_and_index(path)[1] not in self._sizes:
                path.unlink(missing_ok=True)

    def _place(self, segments: dict[str, bytes]) -> None:
        copy = [
            SegmentRecords(
                thread=thread_and_index(Path(name))[0],
                index=0,
                records=_records(content),
                lost_bytes=0,
                cut=is_cut(content),
            )
            for name, content in segments.items()
        ]
        if self._sizes and held_since_ns(copy) > self._kept_until_ns:
            self._index, self._kept_until_ns = self._index + 1, self._last_ns
        self._last_ns = max(last_instant_ns(each.records) for each in copy)
        self._sizes[self._index] = sum(map(len, segments.values()))
        while len(self._sizes) > MAX_COPIES or (len(self._sizes) > 1 and sum(self._sizes.values()) > MAX_BYTES):
            del self._sizes[next(iter(self._sizes))]

    def _with_earlier(self, name: str, content: bytes) -> bytes:
        """Names and groups, with those of earlier copies of the chain."""
        if name not in self._words:
            return content
        new = parse_numbered(content.decode(errors="replace").split("\n"))
        self._words[name] = dict(islice({**new, **self._words[name], **new}.items(), MAX_WORDS))
        return lines_of(self._words[name])


def _records(content: bytes) -> NDArray[np.void]:
    """Records of a segment; empty if it has another form, which a reader will find too."""
    if (len(content) - HEADER_BYTES) % RECORD_DTYPE.itemsize:
        return np.empty(0, dtype=RECORD_DTYPE)
    records = np.frombuffer(content[HEADER_BYTES:], dtype=RECORD_DTYPE)
    return records[plausible(records)]
