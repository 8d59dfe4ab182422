"""The imported table of operations, as numpy columns in `operations.npz` of the attempt.

One row is one operation of one worker, the process at one (dp_rank, stage). Rows are in order of step, rank and start.
"""

import zipfile
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS, BEFORE_ALL_NS, Bools, Ints
from traincope.errors import RunDirectoryError

NO_MICROBATCH = -1
"""Microbatch of an operation that belongs to none."""


class OperationKind(StrEnum):
    """Operations that have a meaning here, under the names of the StragglerAnalysis study. All others are unknown."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECEIVE = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECEIVE = "backward-recv"
    GATHER_PARAMETERS = "params-all-gather"
    REDUCE_GRADIENTS = "grads-reduce-scatter"
    REDUCE_SEPARATE = "separate-grads-all-reduce"
    REDUCE_LAYERNORM = "layernorm-grads-all-reduce"
    REDUCE_EMBEDDING = "embedding-grads-all-reduce"
    CLIP = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"
    GC = "gc"


MESSAGES = {
    OperationKind.FORWARD_SEND: (OperationKind.FORWARD, 1),
    OperationKind.FORWARD_RECEIVE: (OperationKind.FORWARD, -1),
    OperationKind.BACKWARD_SEND: (OperationKind.BACKWARD, -1),
    OperationKind.BACKWARD_RECEIVE: (OperationKind.BACKWARD, 1),
}
"""Kind of a message -> (the computation that it belongs to, parts of the model from this side to the other)."""
PAIRS = {
    OperationKind.FORWARD_SEND: OperationKind.FORWARD_RECEIVE,
    OperationKind.BACKWARD_SEND: OperationKind.BACKWARD_RECEIVE,
}
"""Kind of a send -> kind of its receive."""
OF_STAGE = (OperationKind.GATHER_PARAMETERS, OperationKind.REDUCE_GRADIENTS, OperationKind.REDUCE_SEPARATE)
"""Collectives of all data-parallel ranks of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations of whole steps: every worker has its rows, every receive its send. Arrays have one entry per row."""

    num_replicas: int
    """Data-parallel ranks of the job."""
    num_stages: int
    kinds: tuple[str, ...]
    """Name of each number in `kind`: an `OperationKind`, or an unknown name of the table."""
    kind: Ints
    rank: Ints
    dp_rank: Ints
    stage: Ints
    chunk: Ints
    """Position of the model's part among those of its stage."""
    step: Ints
    microbatch: Ints
    """NO_MICROBATCH for an operation that belongs to none."""
    start_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def part(self) -> Ints:
        """Position of each row's part in the model: chunk x stages + stage."""
        position: Ints = self.chunk * self.num_stages + self.stage
        return position

    def are(self, *kinds: OperationKind) -> Bools:
        """Mark the rows of these kinds."""
        numbers = [number for number, name in enumerate(self.kinds) if name in kinds]
        return np.isin(self.kind, numbers)

    @property
    def known(self) -> Bools:
        """Mark the rows of a kind that has a meaning here."""
        return self.are(*OperationKind)

    def step_bounds(self) -> tuple[Ints, Ints, Ints]:
        """Return the steps, ascending, and of each the first start and the last end on any worker, in ns."""
        steps, number = np.unique(self.step, return_inverse=True)
        first_ns, last_ns = np.full(len(steps), AFTER_ALL_NS), np.full(len(steps), BEFORE_ALL_NS)
        np.minimum.at(first_ns, number.reshape(-1), self.start_ns)
        np.maximum.at(last_ns, number.reshape(-1), self.end_ns)
        return steps, first_ns, last_ns

    def only(self, chosen: Bools | Ints) -> "Operations":
        """Return the chosen rows."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})


COLUMNS = tuple(field.name for field in fields(Operations) if field.name not in ("num_replicas", "num_stages", "kinds"))


def write_operations(path: Path, operations: Operations) -> None:
    """Write the table. Raises OSError."""
    columns: dict[str, Any] = {name: getattr(operations, name) for name in COLUMNS}
    np.savez_compressed(path, kinds=np.array(operations.kinds, dtype=np.str_), **columns)


def read_operations(path: Path) -> Operations | None:
    """Read the table; None if there is none. Raises RunDirectoryError if it is damaged."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            kinds = tuple(str(name) for name in file["kinds"])
            columns: dict[str, NDArray[np.int64]] = {name: file[name].astype(np.int64) for name in COLUMNS}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); import the table again") from error
    if len({len(column) for column in columns.values()}) != 1 or not len(columns["kind"]):
        raise RunDirectoryError(f"{path} is damaged (its columns differ in length); import the table again")
    num_replicas, num_stages = (int(columns[name].max()) + 1 for name in ("dp_rank", "stage"))
    return Operations(kinds=kinds, num_replicas=num_replicas, num_stages=num_stages, **columns)
