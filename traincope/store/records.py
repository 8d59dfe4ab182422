"""One file of records, in either form."""

from pathlib import Path

from traincope.store.compacted import read_compacted
from traincope.store.layout import COMPACTED
from traincope.store.segments import SegmentRecords, read_segment


def read_records(path: Path) -> SegmentRecords:
    """Raises as `read_segment` and `read_compacted` do."""
    return read_compacted(path) if path.suffix == COMPACTED else read_segment(path)
