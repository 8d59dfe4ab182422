"""Write the table of docs/reference/versions.md: `make compat-matrix`, or `python -m tests.compat_matrix 2.13.0@3.12`.

Each combination of torch and Python gets an environment of its own, one at a time, which is deleted afterwards. Its row
is the outcome of `python -m tests.compat` there. A combination that cannot be had is a row with the reason, if it has
no row yet. Rows of other combinations stay as they are. Exit code 1 if a combination fails that could be had.

A CUDA build of torch needs 6 GB of disk, so it is installed with CUDA=1 only.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "versions.md"
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RELEASES = (
    *("2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.1"),
    "2.15.0",
)
COMBINATIONS = (*product(RELEASES, PYTHONS[:1]), *product(RELEASES[-3:], PYTHONS[1:]))
"""Every release on the oldest Python, and the newest three on each later one."""
RECORDED = ("collectives", "waits", "matched between ranks", "steps", "DDP's stall for a rank 100 ms late")
PIPELINE, FALLBACK, RESTORED, LOSSES = (
    "pipeline actions",
    "without the dispatcher",
    "torch restored",
    "losses as without it",
)
ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \| (\d+\.\d+) \|.*$", re.MULTILINE)


class Unavailable(Exception):
    """A combination that cannot be had here."""


def main(words: Sequence[str]) -> int:
    wanted = [tuple(word.split("@")) for word in words] or COMBINATIONS
    failed = []
    for torch, python in wanted:
        try:
            row, good = tested(torch, python)
        except Unavailable as reason:
            if (torch, python) in rows(PAGE.read_text()):
                print(f"torch {torch}, Python {python}: {reason}; its row stays", flush=True)
                continue
            row, good = f"not tested: {reason} | | | | |", True
        print(f"torch {torch}, Python {python}: {row}", flush=True)
        PAGE.write_text(with_row(PAGE.read_text(), (torch, python), f"| {torch} | {python} | {row}"))
        failed += [] if good else [(torch, python)]
    return int(bool(failed))


def tested(torch: str, python: str) -> tuple[str, bool]:
    """Row of a combination without its first two cells, and whether all that must work works. Raises Unavailable."""
    path, wanted = interpreter(python), [f"torch=={torch}", *PACKAGES]
    if os.environ.get("CUDA") != "1" and needs_cuda(wanted, python):
        raise Unavailable("only a CUDA build is offered")
    with tempfile.TemporaryDirectory(prefix=".venv-torch-", dir=ROOT) as folder:
        environment = Path(folder) / "bin" / "python"
        run([path, "-m", "venv", folder], "no environment")
        pip = [str(environment), "-m", "pip", "install", "--quiet", "--no-compile", "--no-cache-dir"]
        run([*pip, *wanted], "pip does not install")
        file = Path(folder) / "outcomes.json"
        command = [str(environment), "-m", "tests.compat", "--json", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not file.exists():
            return f"fails: {last_line(done.stderr)} | | | | {today()} |", False
        return cells(json.loads(file.read_text())), done.returncode == 0


def needs_cuda(packages: list[str], python: str) -> bool:
    """Return True if pip would install libraries of CUDA. Raises Unavailable."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    for_python = ["--python-version", python, "--only-binary", ":all:", "--target", "unused"]
    planned = json.loads(run([*pip, *for_python, *packages], "pip finds no wheel"))["install"]
    return any(package["metadata"]["name"].startswith("nvidia-") for package in planned)


def cells(outcomes: dict[str, list[str] | str]) -> str:
    failed, absent = outcomes["failed"], outcomes["absent_probes"]

    def state(*checks: str) -> str:
        return ", ".join(f"**{check}: no**" for check in checks if check in failed)

    return " | ".join(
        (
            str(outcomes["build"]),
            state(*RECORDED, PIPELINE) or "all",
            state(FALLBACK) or "all",
            state(RESTORED, LOSSES) or "bit for bit",
            ", ".join(absent) or "none",
            f"{today()} |",
        )
    )


def interpreter(version: str) -> str:
    """Path of this version of Python. uv installs it where uv is and can. Raises Unavailable."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [*pyenv.glob(f"versions/{version}.*/bin/python"), shutil.which(f"python{version}")]
    for path in filter(None, found):
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if printed.startswith(f"Python {version}."):
            return str(path)
    if uv := shutil.which("uv"):
        run([uv, "python", "install", version], f"uv has no Python {version}")
        return run([uv, "python", "find", version], f"uv has no Python {version}").strip()
    raise Unavailable(f"no Python {version} is installed")


def run(command: Sequence[str], problem: str) -> str:
    """Output of a command. Raises Unavailable with the last line of its errors."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{problem}: {last_line(done.stderr)}")
    return done.stdout


def last_line(text: str) -> str:
    """The last line, or the first of pip's errors: its last one only names a page."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")][:1] or lines
    return (lines[-1] if lines else "no message").replace("|", "/")[:120]


def with_row(page: str, combination: tuple[str, ...], row: str) -> str:
    """The page with the row of a combination replaced or added, sorted by torch and Python."""
    every = rows(page) | {combination: row}
    in_order = sorted(every, key=lambda key: [int(part) for name in key for part in name.split(".")])
    head, _, rest = page.partition("|---|---|---|---|---|---|---|---|\n")
    assert rest, f"{PAGE} has no table of eight columns"
    after = ROW.sub("", rest).lstrip("\n")
    return f"{head}|---|---|---|---|---|---|---|---|\n" + "\n".join(every[key] for key in in_order) + f"\n\n{after}"


def rows(page: str) -> dict[tuple[str, ...], str]:
    """(torch, Python) -> its row."""
    return {match.groups(): match.group() for match in ROW.finditer(page)}


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
