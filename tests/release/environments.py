"""Clean environments with traincope's wheel, an extra of it, and packages from the index."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.release.distribution import ROOT

SECONDS = 1800
"""Limit of a test and of each command, which ends what hangs. A busy machine needs minutes for an installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    bin: Path
    directory: Path
    """Empty directory in which everything runs."""

    def run(self, *command: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of this environment."""
        program, *words = map(str, command)
        return subprocess.run(
            [str(self.bin / program), *words],
            env=self._variables(variables),
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    def start(self, *command: object) -> "subprocess.Popen[str]":
        program, *words = map(str, command)
        return subprocess.Popen(
            [str(self.bin / program), *words],
            env=self._variables({}),
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def python(self, program: str, *words: object, **variables: str) -> str:
        """Output of a program that must succeed."""
        done = self.run("python", "-c", program, *words, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _variables(self, more: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRAINCOPE_"))}
        return {**kept, "PATH": f"{self.bin}:{os.environ['PATH']}", **more}


@contextmanager
def environment(wheel: Path, extra: str = "", *, python: str = sys.executable) -> Iterator[Environment]:
    """Make an environment with pinned versions, and delete it afterwards."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
        subprocess.run([python, "-m", "venv", folder], check=True)
        place = Environment(bin=Path(folder) / "bin", directory=Path(empty))
        wanted = f"traincope[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
        pinned = ("-c", str(ROOT / "constraints.txt"), *shlex.split(os.environ.get("PIP_ARGS", "")))
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *pinned, wanted)
        done = place.run("python", *install)
        assert done.returncode == 0, done.stderr
        yield place
