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
    ("published formulas, MFU to bubbles", "as printed, or what each allows", "tests.truth.published"),
    ("FLOPs counted in every layout", "1 % of the model's", "tests.truth.flops"),
    ("the ledger of known trainings", "1 % of a step, 3 % where the machine's noise is more", "tests.truth workloads"),
    ("the bubble of known pipelines", "1 point of a step", "tests.truth.bubble"),
    ("what a change would make of a step", "3 % of a step", "tests.truth what-if"),
    ("what differs between two trainings", "3 % of a step", "tests.truth diff"),
    ("clocks of made runs", "the bound that is told", "tests.truth.clocks"),
    ("real GPU traces", "not a nanosecond", "pytest -q tests/ingest/test_public_traces.py"),
)
"""What is held, within what, and the module that holds it."""


def main() -> int:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(before + BEGIN + "\n".join(_table()) + "\n" + END + after)
    return 0


def _table() -> Iterator[str]:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    yield f"| held to what is known ({versions}) | within | what the command says last | `.venv/bin/python -m` | on |"
    yield "|---|---|---|---|---|"
    for what, within, module in COMMANDS:
        print(what, file=sys.stderr, flush=True)
        yield f"| {what} | {within} | {last_word(module)} | `{module}` | {date.today().isoformat()} |"


def last_word(module: str) -> str:
    """Of a command that fails, or that only skips what it should do, that stands before it."""
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
    if done.returncode:
        return f"**MISSED**: {said}"
    return f"**NOT RUN**: {said}" if "skipped" in said else said


if __name__ == "__main__":
    sys.exit(main())
