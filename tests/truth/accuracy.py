"""README's table of accuracy: `python -m tests.truth.accuracy` runs what it is made of and writes it there.

Half an hour, on a machine where nothing else runs. What each command says last is its row; one that misses
says so in it, and stands there as well.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- accuracy: written by make accuracy -->\n", "<!-- /accuracy -->\n"
COMMANDS = (
    ("published formulas, MFU to bubbles", "tests.truth.published", "make truth-plan"),
    ("counted FLOPs in every layout", "tests.truth.flops", "make truth-flops"),
    ("the ledger of known trainings", "tests.truth workloads", "make truth"),
    ("the bubble of known pipelines", "tests.truth.bubble", "make truth-bubble"),
    ("clocks of made runs", "tests.truth.clocks", "make truth-clocks"),
    ("real GPU traces, to the ns", "pytest -q tests/ingest/test_public_traces.py", "pytest tests/ingest"),
)
"""What is held, the module that holds it, and how a reader runs it."""


def main() -> int:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(before + BEGIN + "\n".join(_table()) + "\n" + END + after)
    return 0


def _table() -> Iterator[str]:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    yield f"| held to what is known ({versions}) | what the command says last | command | on |"
    yield "|---|---|---|---|"
    for what, module, command in COMMANDS:
        print(what, file=sys.stderr, flush=True)
        yield f"| {what} | {_last_line(module)} | `{command}` | {date.today().isoformat()} |"


def _last_line(module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *module.split()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=README.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    said = lines[-1].strip("= ") if lines else f"nothing; it exited with {done.returncode}"
    return f"**MISSED**: {said}" if done.returncode else said


if __name__ == "__main__":
    sys.exit(main())
