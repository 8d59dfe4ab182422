"""Events that an agent still needs from segments that an earlier agent compacted.

A restarted agent, or the page of a running job, reads them once. Every window needs a reading of the clocks and the
counted FLOPs. Counters and the job's time continue from the events and the evaluation and checkpoint phases.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import MissingDependencyError, RunDirectoryError
from traincope.events import Flag, Kind, Phase
from traincope.store import RECORD_DTYPE
from traincope.store.layout import COMPACTED, record_files
from traincope.store.segments.compacted import holds, read_compacted

KINDS = (Kind.EVENT, Kind.FLOPS)
PHASES = (Phase.CHECKPOINT_STALL, Phase.EVALUATION)


def needed_compacted_records(directory: Path) -> NDArray[np.void]:
    """Needed events of all threads, in order of start. Empty without pyarrow; what cannot be read is skipped."""
    paths: list[Path] = []
    with suppress(PermissionError):
        paths += [path for path in record_files(directory) if path.suffix == COMPACTED]
    joined = np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *_parts(paths)])
    in_time: NDArray[np.void] = joined[np.argsort(joined["start_ns"], kind="stable")]
    return in_time


def _parts(paths: list[Path]) -> Iterator[NDArray[np.void]]:
    has_clock = False
    for path in paths:
        try:
            if not has_clock or holds(path, kinds=KINDS, phases=PHASES):
                records = read_compacted(path).records
                yield records[_needed(records)]
                has_clock = True
        except (RunDirectoryError, MissingDependencyError):
            continue


def _needed(records: NDArray[np.void]) -> NDArray[np.bool_]:
    kinds = records["kind"]
    counted = records["step"][kinds == Kind.FLOPS]
    logged = (kinds == Kind.SCALAR) & np.isin(records["step"], counted)
    is_event = np.isin(kinds, (*KINDS, Kind.CLOCK)) | _marked(records)
    needed: NDArray[np.bool_] = is_event | logged
    return needed


def _marked(records: NDArray[np.void]) -> NDArray[np.bool_]:
    on_host = np.isin(records["kind"], (Kind.PHASE, Kind.ACTION)) & (records["flags"] & Flag.DEVICE == 0)
    marked: NDArray[np.bool_] = on_host & np.isin(records["phase"], PHASES)
    return marked
