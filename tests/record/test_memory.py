"""What a phase's memory is read from, when the run ends while another thread still reads."""

import os
import threading
from pathlib import Path

import pytest
import torch

import traincope


def test_a_thread_that_reads_while_the_run_ends_reads_no_closed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held in the middle of its reading until the run is over, and then finds the file open."""
    begun, over, errors = threading.Event(), threading.Event(), list[OSError]()
    pread = os.pread

    def held(fd: int, length: int, offset: int) -> bytes:
        begun.set()
        assert over.wait(60)
        try:
            return pread(fd, length, offset)
        except OSError as error:
            errors.append(error)
            raise

    model = torch.nn.Linear(4, 4)
    actor = threading.Thread(target=model, args=(torch.ones(1, 4),))
    with traincope.run(tmp_path / "run") as run:
        model(torch.ones(1, 4))
        run.step()
        monkeypatch.setattr(os, "pread", held)
        actor.start()
        assert begun.wait(60)
    over.set()
    actor.join()
    assert errors == []


def test_the_file_is_closed_with_the_run(tmp_path: Path) -> None:
    def opened() -> list[str]:
        return [path for fd in os.listdir("/proc/self/fd") if (path := _target(fd)).endswith("statm")]

    with traincope.run(tmp_path / "run") as run:
        torch.nn.Linear(4, 4)(torch.ones(1, 4))
        run.step()
        assert len(opened()) == 1
    assert opened() == []


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # that of the listing itself
        return ""
