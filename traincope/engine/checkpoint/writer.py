"""torch's writer of shards, with checksums, and with a commit as the last step of rank 0.

torch calls these methods in order, in the background if the save is asynchronous: `stage` copies the state,
`write_data` writes a rank's shards and waits for the disk, `finish` runs on rank 0 after all ranks have written.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.tensor import DTensor

from traincope.engine.checkpoint.manifest import Sum
from traincope.engine.ranks.local import local_part
from traincope.engine.ranks.torch_private import dtensor_like

METADATA = ".metadata"
"""torch's index of the shards."""

State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's share of the files, as it travels to rank 0."""

    sums: Mapping[str, Sum]
    uploading: bool
    """The rank is still uploading its share of an earlier checkpoint."""


class Writer(FileSystemWriter):
    """Writes one checkpoint."""

    def __init__(
        self,
        path: Path,
        *,
        wait: Callable[[], None],
        prepare: Callable[[], None],
        uploading: Callable[[], bool],
        commit: Callable[[Mapping[str, Sum], bool], object],
        on_error: Callable[[], None],
    ) -> None:
        """`wait` runs before a copy is made for the background, `prepare` on each rank before rank 0 writes.

        `commit` runs on rank 0 after all have written, with the files' sums, and whether `uploading` is true on a
        rank. The attribute `committed` of the Metadata that torch gives to all ranks is its result.
        `on_error` runs on a rank that cannot write, before torch reports that to the others.
        """
        super().__init__(path)
        self.fs = _ExistingParent()
        self.names: tuple[str, ...] = ()
        """Files that this rank wrote."""
        self._wait = wait
        self._prepare = prepare
        self._uploading = uploading
        self._commit = commit
        self._on_error = on_error

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        with self._noticed():
            self._prepare()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Create the folder on each rank."""
        with self._noticed():
            prepared: SavePlan = super().prepare_local_plan(plan)
            return prepared

    def stage(self, state_dict: State) -> State:
        """Copy everything into the CPU's memory. torch's own copy would communicate for DTensors on a GPU."""
        self._wait()
        self.per_thread_copy_ahead = 0
        return {name: _copy(value) for name, value in state_dict.items()}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[Any]]:
        """Write, then read the files back for their sums, which travel to rank 0 as one more result."""
        with self._noticed():
            written = super().write_data(plan, planner).value()
            self.names = tuple(sorted({result.storage_data.relative_path for result in written}))
            sums = {name: Sum.of(Path(self.path, name)) for name in self.names}
        future: torch.futures.Future[list[Any]] = torch.futures.Future()
        future.set_result([*written, Share(sums=sums, uploading=self._uploading())])
        return future

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        shares: list[Share] = [share for *_, share in results]
        with self._noticed():
            super().finish(metadata, [written for *written, _ in results])
            sums: dict[str, Sum] = {METADATA: Sum.of(Path(self.path, METADATA))}
            for share in shares:
                sums |= share.sums
            self.names = (*self.names, METADATA)
            committed: Any = metadata
            committed.committed = self._commit(sums, any(share.uploading for share in shares))

    @contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError):
            self._on_error()
            raise


class _ExistingParent(FileSystem):
    """Creates the checkpoint's folder only if its parent exists. A later attempt may have removed the parent."""

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        Path(path).mkdir(exist_ok=True)


def _copy(value: object) -> object:
    if isinstance(value, DTensor):
        return dtensor_like(value, local_part(value).detach().to("cpu", copy=True))
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
