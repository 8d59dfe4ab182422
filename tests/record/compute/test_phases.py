"""Threads that call modules are known while they live, whatever the garbage collector frees meanwhile."""

import subprocess
import sys
import threading
import weakref
from pathlib import Path

import torch
from torch import nn, ones
from torch.utils.data import DataLoader

import traincope
from traincope.record.compute.phases import Phases

COLLECTING = """
import gc, os, threading
from traincope.record.compute.phases import Phases

class Cycle:
    def __init__(self):
        self.local, self.itself = threading.local(), self

stop = threading.Event()
for _ in range(8):
    threading.Thread(target=stop.wait, daemon=True).start()
phases = Phases()
gc.set_threshold(1)
for _ in range(2000):
    Cycle().local.data = 1
    phases.others_call_modules()
os._exit(0)
"""
"""The collector runs at almost any call. It frees a `threading.local`, for which it needs the list of all threads."""


def test_another_thread_counts_from_its_first_call_of_a_module_until_its_end(tmp_path: Path) -> None:
    called, ended = threading.Event(), threading.Event()

    def call() -> None:
        nn.Linear(2, 2)(ones(1, 2))
        called.set()
        ended.wait()

    with traincope.run(tmp_path / "run", level=0) as run:
        assert run._probes is not None
        (phases,) = (hook for hook in run._probes.on if isinstance(hook, Phases))
        nn.Linear(2, 2)(ones(1, 2))
        assert not phases.others_call_modules()
        other = threading.Thread(target=call)
        other.start()
        called.wait()
        assert phases.others_call_modules()
        ended.set()
        other.join()
        assert not phases.others_call_modules()


def test_the_garbage_collector_cannot_block_the_look_at_other_threads() -> None:
    ended = subprocess.run([sys.executable, "-c", COLLECTING], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_nothing_of_the_recorder_is_called_when_an_object_of_the_training_goes(tmp_path: Path) -> None:
    """Python drops what a signal handler raises in such a call, and the training would never see it."""
    model, batches = nn.Linear(2, 1), iter(DataLoader(torch.ones(8, 2), batch_size=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincope.run(tmp_path / "run", level=2, budget=None):
        for _ in range(3):
            model(next(batches)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        references = [each for owner in (model, batches, optimizer) for each in weakref.getweakrefs(owner)]
        assert len(references) >= 3
        callbacks = [each.__callback__ for each in references if each.__callback__ is not None]
        assert [each for each in callbacks if each.__module__.startswith("traincope")] == []  # torch may have its own
