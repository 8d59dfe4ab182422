"""Ranks as processes of their own, without torch, and the agents they start."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from traincope.store.lock import job_name, lock_path, take_lock

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)

sys.meta_path.insert(0, NoTorch())
"""
"""Begins a program of spans only. Its start takes a tenth of the time."""
TRAINING = """
import os, sys, time
import traincope
with traincope.run(sys.argv[1], budget=None) as run:
    while not os.path.exists(sys.argv[2]):
        with traincope.span("work"):
            time.sleep(0.01)
        run.step()
"""
"""Training that ends when a file exists."""
DEADLINE_SECONDS = 300.0


def start_rank(
    out: Path, stop: Path, *, rank: int, ranks: int, with_torch: bool = False, **variables: str
) -> subprocess.Popen[bytes]:
    """`stop`: the file that ends the training. With torch, the rank answers when it is asked for its stacks."""
    ranks_variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    quick = {"TRAINCOPE_AGENT": "on", "TRAINCOPE_AGENT_INTERVAL": "0.1", "TRAINCOPE_AGENT_SHARE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING if with_torch else WITHOUT_TORCH + TRAINING, str(out), str(stop)],
        env={**os.environ, **ranks_variables, **quick, **variables},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def until(true: Callable[[], bool], what: str) -> None:
    """Poll until `true()`. The deadline only ends a broken test."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS:g} s for {what}"
        time.sleep(0.02)


def agents_of(run: Path) -> list[int]:
    """Process ids of the agents whose command names the run."""
    process_ids = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            words = _words(process)
            if "--lock" in words and str(run.resolve()) in words and not words[0].endswith("sh"):
                process_ids.append(int(process.name))
    return process_ids


def the_agent_of(run: Path) -> int:
    until(lambda: len(agents_of(run)) == 1, f"one agent of {run}")
    return agents_of(run)[0]


def kill_agents(run: Path) -> None:
    """Kill the agents, and wait until they hold no lock: a process releases its memory before its files."""
    for agent in agents_of(run):
        os.kill(agent, signal.SIGKILL)
    until(lambda: not agents_of(run) and _is_free(lock_of(run)), "the end of the agents")


def _is_free(lock: Path) -> bool:
    held = take_lock(lock)
    if held is None:
        return False
    os.close(held)
    return True


def lock_of(run: Path, *, attempt: int = 0) -> Path:
    return lock_path(job_name(run, attempt=attempt))


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]
