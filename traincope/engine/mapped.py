"""Tensors whose memory is a file: the kernel brings pages in as they are touched, and takes them away again."""

import mmap
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

from traincope.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedTensor:
    """A CPU tensor of zeros in a file without a name, which vanishes with the last process that maps it."""

    tensor: Tensor
    """One-dimensional."""
    _map: mmap.mmap | None
    """None where there are no bytes to map."""

    @classmethod
    def zeros(cls, count: int, *, dtype: torch.dtype, directory: str | None) -> "MappedTensor":
        """Every byte is reserved now: on a full disk a hole would kill the training with SIGBUS when it is written.

        Raises TrainingError if `directory` (None: the system's temporary one) has no room for it.
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

    def let_go(self) -> None:
        """Give its pages back to the kernel, which writes them to the file when it likes; nothing is lost."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
