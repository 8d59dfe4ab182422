"""The table of `docs/accuracy.md`: `python -m tests.truth.accuracy` runs the commands of its rows and writes it.

It writes all rows of one commit, or nothing: it refuses a tree with uncommitted changes, before and after. A row shows
the last line of its command's output. A row that misses its limit says MISSED and stays. It takes an hour on a machine
where nothing else runs; the seconds of each command go to stderr.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch

from tests.written import UncommittedError, commit, write_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
MISSED, NOT_RUN = "**MISSED**", "**NOT RUN**"
COMMANDS = (
    ("published formulas, MFU to bubbles", "as printed, or what each allows", "tests.truth.formulas.published"),
    ("FLOPs counted in every layout", "1 % of the model's", "tests.truth.formulas.flops"),
    ("the ledger of known trainings", "1 % of a step, 3 % where the machine's noise is more", "tests.truth workloads"),
    ("three of them, in windows", "1 % of a step, 3 % where the machine's noise is more", "tests.truth sampled"),
    ("the bubble of known pipelines", "1 point of a step", "tests.truth.pipelines.bubble"),
    ("what a change would make of a step", "3 % of a step", "tests.truth what-if"),
    ("gains of eight changes, then made", "a fifth of the gain, or 1 % of a step", "tests.truth predicted"),
    ("peak memory of real ranks", "5 %", "tests.truth.memory.peaks"),
    ("steps of layouts, by the rates of another", "15 % of a step", "tests.truth.layouts.step_times"),
    ("differences between two trainings", "3 % of a step", "tests.truth diff"),
    ("clocks of simulated runs", "the stated bound", "tests.truth.machines.clocks"),
    ("real GPU traces", "not a nanosecond", "pytest -q tests/ingest/test_public_traces.py"),
)
"""The compared quantity, its limit, and the module that compares it."""


def main() -> int:
    try:
        measured = commit(ROOT, but=PAGE)
        lines = list(_table(measured))
        if commit(ROOT, but=PAGE) != measured:
            raise UncommittedError("the commit changed while its commands ran")
    except UncommittedError as error:
        print(f"nothing is written: {error}", file=sys.stderr)
        return 2
    write_table(PAGE, "accuracy", lines, by="make accuracy")
    return int(any(MISSED in line or NOT_RUN in line for line in lines))


def _table(measured: str) -> Iterator[str]:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    yield f"Commit {measured}, {date.today().isoformat()}: {versions}."
    yield ""
    yield "| compared with a known truth | limit | last line of the command's output | `.venv/bin/python -m` |"
    yield "|---|---|---|---|"
    for title, within, module in COMMANDS:
        began = time.monotonic()
        yield f"| {title} | {within} | {last_line(module)} | `{module}` |"
        print(f"{title}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def last_line(module: str) -> str:
    """Return the last line that a command prints; a failure or a skip is marked in front of it."""
    done = subprocess.run(
        [sys.executable, "-m", *module.split()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    last = lines[-1].strip("= ") if lines else f"no output; it exited with {done.returncode}"
    if done.returncode:
        return f"{MISSED}: {last}"
    return f"{NOT_RUN}: {last}" if "skipped" in last else last


if __name__ == "__main__":
    sys.exit(main())
