"""The file from which the memory of a process is read."""

import os
from pathlib import Path

import torch

import traincope


def test_reading_memory_leaves_no_file_open(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        torch.nn.Linear(4, 4)(torch.ones(1, 4))
        run.step()
        assert not any(path.endswith("statm") for path in map(_target, os.listdir("/proc/self/fd")))
    assert "resident" in traincope.open_run(tmp_path / "run").ranks[0].names


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # the descriptor of the listing itself
        return ""
