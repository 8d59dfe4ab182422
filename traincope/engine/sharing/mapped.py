"""Tensors with a file as memory: the kernel loads pages as they are touched and takes them away again."""

import mmap
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

from traincope.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedTensor:
    """A CPU tensor of zeros in an unnamed file, which vanishes with the last process that maps it."""

    tensor: Tensor
    """One-dimensional."""
    _map: mmap.mmap | None
    """None if there are no bytes to map."""

    @classmethod
    def zeros(cls, count: int, *, dtype: torch.dtype, directory: str | None) -> "MappedTensor":
        """Create zeros and reserve all bytes now.

        On a full disk an unreserved page would kill the training with SIGBUS when it is written. Raises TrainingError
        if `directory` (None: the system's temporary folder) has no room.
        """
        num_bytes = count * dtype.itemsize
        if num_bytes == 0:
            return cls(tensor=torch.empty(0, dtype=dtype), _map=None)
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
                mapped = mmap.mmap(file.fileno(), num_bytes)
        except OSError as error:
            place = directory or tempfile.gettempdir()
            raise TrainingError(
                f"cannot reserve {num_bytes} bytes in {place} for offloading: {error.strerror}; set offload.directory "
                "to a folder on a disk with more room"
            ) from error
        return cls(tensor=torch.frombuffer(mapped, dtype=dtype), _map=mapped)

    def release_pages(self) -> None:
        """Return the pages to the kernel, which writes them to the file when it likes. No data is lost."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
