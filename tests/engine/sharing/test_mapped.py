"""Tensors in files: the place of their bytes, their persistence, and the message on a full disk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from traincope.engine.sharing.mapped import MappedTensor
from traincope.errors import TrainingError


def file_of(tensor: Tensor) -> str:
    """File that /proc lists at a tensor's address. Empty for memory without a file."""
    address = tensor.untyped_storage().data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, _, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        if start <= address < end:
            return name[0] if int(inode) and name else ""
    return ""


def test_a_mapped_tensor_lies_in_an_unnamed_file(tmp_path: Path) -> None:
    mapped = MappedTensor.zeros(5000, dtype=torch.float32, directory=str(tmp_path))
    assert file_of(mapped.tensor).startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert file_of(torch.zeros(5000)) == ""


def test_written_values_survive_the_release_of_pages(tmp_path: Path) -> None:
    mapped = MappedTensor.zeros(5000, dtype=torch.float32, directory=str(tmp_path))
    assert torch.equal(mapped.tensor, torch.zeros(5000))
    mapped.tensor.copy_(torch.arange(5000))
    mapped.release_pages()
    assert torch.equal(mapped.tensor, torch.arange(5000, dtype=torch.float32))


def test_an_empty_tensor_needs_no_file(tmp_path: Path) -> None:
    mapped = MappedTensor.zeros(0, dtype=torch.float32, directory=str(tmp_path))
    mapped.release_pages()
    assert mapped.tensor.numel() == 0


def test_a_full_disk_is_reported_before_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as refused:
        MappedTensor.zeros(2**50, dtype=torch.float32, directory=str(tmp_path))
    assert str(refused.value).startswith(f"cannot reserve {2**52} bytes in {tmp_path} for offloading: ")
    assert str(refused.value).endswith("set offload.directory to a folder on a disk with more room")
