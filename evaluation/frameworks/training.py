"""One program trained twice in its environment: bare, and under `traincope run`."""

import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from evaluation.frameworks.truth import Case

HERE = Path(__file__).parent
LIMIT_SECONDS = 900
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "TRAINCOPE_AGENT": "off",
    "TRAINCOPE_BUDGET": "none",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Every step in detail, so that all are counted. The agent has its own tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A program that has ended."""

    exit_code: int
    output: str
    """Standard output and error, without the lines of `traincope run`."""
    losses: dict[str, str]
    """File of a rank -> its losses, as hexadecimal numbers."""

    @property
    def lines(self) -> Counter[str]:
        """The lines of the output in any order, because ranks write at the same time; without numbers, which may be
        times, processes and ports."""
        return Counter(re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", line) for line in self.output.splitlines())

    @property
    def reason(self) -> str:
        """The last line that names an error."""
        lines = [line.strip() for line in self.output.splitlines() if re.search(r"Error|error:", line)]
        return lines[-1] if lines else f"exit code {self.exit_code}"


def train(case: Case, *, python: Path, directory: Path, run: Path | None) -> Ended:
    """Run the program in `directory`, recorded to `run` unless that is None. Raises subprocess.TimeoutExpired."""
    directory.mkdir(parents=True)
    words = [str(HERE / case.program), str(directory), *case.arguments]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    command = [str(python), *([] if case.own_launcher else launcher), *words]
    if run is not None:
        command = [str(python), "-m", "traincope.cli.main", "run", "--out", str(run), "--", *command]
    built = python.parents[1] / "extensions"  # what a package compiles at its first use
    environment = {**os.environ, **SETTINGS, "TORCH_EXTENSIONS_DIR": str(built), **case.environment}
    exit_code, printed = _run(command, environment=environment, directory=directory)
    output = printed.replace(str(directory), "DIRECTORY")
    return Ended(
        exit_code=exit_code,
        output="\n".join(line for line in output.splitlines() if not line.startswith("traincope: ")),
        losses={path.name: path.read_text() for path in sorted(directory.glob("losses-*"))},
    )


def _run(command: list[str], *, environment: dict[str, str], directory: Path) -> tuple[int, str]:
    """Return the exit code, and standard output and error. A launcher that is late ends its ranks itself."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=directory) as process:
        try:
            printed = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            raise
    return process.returncode, "".join(printed)
