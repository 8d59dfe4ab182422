"""Processes that suffer a fault: real ones, forked from a process that has imported torch already."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS, STARTING_SECONDS = 100.0, 250.0
"""Time for a process to end, and for the server to import torch on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a process."""

    code: int
    """Exit code of the process, or minus the signal that killed it."""
    result: Any
    """The result of its function. None if it did not return."""
    out: str
    err: str


class Victims:
    """A starter of one process at a time."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    def run(self, function: Callable[..., Any], *arguments: Any) -> Ended:
        """Call a module's function in a process of its own, and wait for the process to end."""
        directory, _ = self.start(function, *arguments)
        return self.ended(directory)

    def train(self, function: Callable[..., Any], *arguments: Any) -> Ended:
        """Like `run`, in half the time: the interpreter's shutdown is skipped."""
        directory, _ = self.start(function, *arguments, briefly=True)
        return self.ended(directory)

    def start(self, function: Callable[..., Any], *arguments: Any, briefly: bool = False) -> tuple[Path, int]:
        """Start a process. Returns its directory, which is also its working directory, and its process id."""
        if self._server is None:
            command = [sys.executable, "-m", "tests.faults.victims.server"]
            self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            assert self._answer(within_seconds=STARTING_SECONDS) == b"ready"
        directory = Path(tempfile.mkdtemp(prefix="traincope-victim-"))
        request = {
            "module": function.__module__,
            "function": function.__name__,
            "arguments": [str(argument) if isinstance(argument, Path) else argument for argument in arguments],
            "directory": str(directory),
            "briefly": briefly,
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode())
        self._pid = int(self._answer())
        return directory, self._pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._pid is not None
        os.kill(self._pid, number)

    def ended(self, directory: Path) -> Ended:
        """Wait until the started process has ended."""
        code = os.waitstatus_to_exitcode(int(self._answer()))
        out, err, result = (directory / name for name in ("out", "err", "result.json"))
        return Ended(
            code=code,
            result=json.loads(result.read_text()) if result.exists() else None,
            out=out.read_text() if out.exists() else "",
            err=err.read_text() if err.exists() else "",
        )

    def stop(self) -> None:
        if self._server is not None:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.close()
            self._server.wait(timeout=TIMEOUT_SECONDS)
            self._server.stdout.close()
            self._server = None

    def _answer(self, *, within_seconds: float | None = None) -> bytes:
        """Return the server's next line. A child that hangs is killed, and the test fails."""
        assert self._server is not None
        assert self._server.stdout is not None
        pipe, line = self._server.stdout.fileno(), b""
        deadline = time.monotonic() + (within_seconds or TIMEOUT_SECONDS)
        while not line.endswith(b"\n"):
            if not select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                if self._pid is not None:
                    with suppress(ProcessLookupError):
                        self.kill()
                self._server.kill()
                self._server.wait()
                self._server = None
                raise TimeoutError("a process did not end")
            read = os.read(pipe, 1)
            assert read, "the server has ended"
            line += read
        return line.strip()
