"""Tensors that are files: where their bytes lie, that they stay, and what a full disk says."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from traincope.engine.mapped import MappedTensor
from traincope.errors import TrainingError


def file_of(tensor: Tensor) -> str:
    """What /proc says is mapped where a tensor's memory begins; empty for memory without a file."""
    address = tensor.untyped_storage().data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, _, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        if start <= address < end:
            return name[0] if int(inode) and name else ""
    return ""


def test_its_memory_is_a_file_without_a_name(tmp_path: Path) -> None:
    mapped = MappedTensor.zeros(5000, dtype=torch.float32, directory=str(tmp_path))
    assert file_of(mapped.tensor).startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert file_of(torch.zeros(5000)) == ""


def test_what_was_written_is_there_after_its_pages_went(tmp_path: Path) -> None:
    mapped = MappedTensor.zeros(5000, dtype=torch.float32, directory=str(tmp_path))
    assert torch.equal(mapped.tensor, torch.zeros(5000))
    mapped.tensor.copy_(torch.arange(5000))
    mapped.let_go()
    assert torch.equal(mapped.tensor, torch.arange(5000, dtype=torch.float32))


def test_nothing_needs_no_file(tmp_path: Path) -> None:
    mapped = MappedTensor.zeros(0, dtype=torch.float32, directory=str(tmp_path))
    mapped.let_go()
    assert mapped.tensor.numel() == 0


def test_a_disk_without_room_says_so_before_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as refused:
        MappedTensor.zeros(2**50, dtype=torch.float32, directory=str(tmp_path))
    assert str(refused.value).startswith(f"cannot reserve {2**52} bytes in {tmp_path} for offloading: ")
    assert str(refused.value).endswith("set offload.directory to a folder on a disk with more room")
