"""A recorded run, and what all of its processes asked of the kernel: sockets, files, signals, programs.

strace follows every process, so C code is seen too, and a process that outlives its parent.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.debian import need

CALLS = (
    *("network", "execve", "kill", "tkill", "tgkill", "pidfd_send_signal", "openat", "open", "creat", "mkdir"),
    *("mkdirat", "chmod", "fchmod", "fchmodat", "ptrace", "process_vm_readv", "capset", "setuid", "bpf"),
    *("perf_event_open", "mount"),
)
CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")
WORDS = re.compile(r'"((?:[^"\\]|\\.)*)"')
NO_PRIVILEGES = ("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One system call that succeeded."""

    name: str
    arguments: str
    """As strace writes them."""

    @property
    def path(self) -> Path:
        """The first path among the arguments."""
        return Path(WORDS.findall(self.arguments)[0])

    @property
    def mode(self) -> int:
        """The last argument, an octal number."""
        return int(self.arguments.rpartition(", ")[2], 8)

    @property
    def creates(self) -> bool:
        return self.name in ("creat", "mkdir", "mkdirat") or "O_CREAT" in self.arguments


def traced(
    command: Sequence[str | Path], directory: Path, *, variables: Mapping[str, str], timeout_seconds: float = 240
) -> tuple[Call, ...]:
    """Run a command to the end of the last process that it started, without any privilege of root.

    `directory`: an empty one for the logs. Its run must succeed.
    """
    _need_tracing()
    strace = [need("strace", package="strace"), "-ff", "-y", "-s", "4096", "--seccomp-bpf", "-e", ",".join(CALLS)]
    unprivileged = [need("setpriv", package="util-linux"), *NO_PRIVILEGES] if os.geteuid() == 0 else []
    words = [*unprivileged, *strace, "-o", directory / "log", *command]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    assert ended.returncode == 0, ended.stderr
    return tuple(call for log in sorted(directory.glob("log.*")) for call in _calls(log))


def _need_tracing() -> None:
    """Skip the test where the kernel lets no process trace another, as in some containers."""
    tried = subprocess.run([need("strace", package="strace"), "-o", os.devnull, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no process may be traced here: {tried.stderr.strip()}")


def _calls(log: Path) -> Iterator[Call]:
    for line in log.read_text(errors="replace").splitlines():
        match = CALL.match(line)
        if match is not None and int(match[3]) >= 0:
            yield Call(name=match[1], arguments=match[2])


TWO_RANKS = ("/bin/sh", "-c", 'RANK=0 "$@" & RANK=1 "$@" & wait', "sh", sys.executable)
"""Words that start a Python script as both ranks of a job."""
WITHOUT_TORCH = """
import sys, time
import traincope
with traincope.run(sys.argv[1], budget=None) as run:
    for step in range(40):
        with traincope.span("work"):
            time.sleep(0.02)
        run.log(loss=1.0 / (step + 1))
        run.step()
"""
"""Training of one rank that needs no torch."""
WITH_TORCH = """
import sys
import torch
import torch.distributed as dist
import traincope
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with traincope.run(sys.argv[1], budget=None):
    for _ in range(20):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""
"""Training on gloo, for torchrun."""
