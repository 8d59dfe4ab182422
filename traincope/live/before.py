"""What is needed still of the segments that an agent before this one has compacted.

Who comes later, an agent begun anew or a page of a running job, reads them once: for what every window needs (a reading
of the clocks, the FLOPs that were counted), and for what happened, from which counts and the job's time go on.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import MissingDependencyError, RunDirectoryError
from traincope.events import Flag, Kind, Phase
from traincope.store import RECORD_DTYPE
from traincope.store.compacted import holds, read_compacted
from traincope.store.layout import COMPACTED, records_of

KINDS = (Kind.EVENT, Kind.FLOPS)
PHASES = (Phase.CHECKPOINT_STALL, Phase.EVALUATION)


def needed_of_compacted(directory: Path) -> NDArray[np.void]:
    """Records of all threads, in the order they were begun; without pyarrow, or of a damaged file, there are none."""
    paths = [path for path in records_of(directory) if path.suffix == COMPACTED]
    found = np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *_parts(paths)])
    in_time: NDArray[np.void] = found[np.argsort(found["start_ns"], kind="stable")]
    return in_time


def _parts(paths: list[Path]) -> Iterator[NDArray[np.void]]:
    seen = False
    for path in paths:
        try:
            if not seen or holds(path, kinds=KINDS, phases=PHASES):
                records = read_compacted(path).records
                yield records[_needed(records)]
                seen = True
        except (RunDirectoryError, MissingDependencyError):
            continue


def _needed(records: NDArray[np.void]) -> NDArray[np.bool_]:
    kinds = records["kind"]
    counted = records["step"][kinds == Kind.FLOPS]
    logged = (kinds == Kind.SCALAR) & np.isin(records["step"], counted)
    happened = np.isin(kinds, (*KINDS, Kind.CLOCK)) | _marked(records)
    needed: NDArray[np.bool_] = happened | logged
    return needed


def _marked(records: NDArray[np.void]) -> NDArray[np.bool_]:
    on_host = np.isin(records["kind"], (Kind.PHASE, Kind.ACTION)) & (records["flags"] & Flag.DEVICE == 0)
    marked: NDArray[np.bool_] = on_host & np.isin(records["phase"], PHASES)
    return marked
