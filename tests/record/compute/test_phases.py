"""Threads that call modules are known while they live, whatever the garbage collector frees meanwhile."""

import subprocess
import sys
import threading
from pathlib import Path

from torch import nn, ones

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
