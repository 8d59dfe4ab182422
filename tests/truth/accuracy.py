"""The table of `docs/accuracy.md`: `python -m tests.truth.accuracy` runs the commands of its rows and writes it.

It takes an hour on a machine where nothing else runs. A row shows the last line of its command's output. A row
that misses its limit says MISSED.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- accuracy: written by make accuracy -->\n", "<!-- /accuracy -->\n"
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
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n".join(_table()) + "\n" + END + after)
    return 0


def _table() -> Iterator[str]:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    shown = "limit | last line of the command's output | `.venv/bin/python -m` | on"
    yield f"| compared with a known truth ({versions}) | {shown} |"
    yield "|---|---|---|---|---|"
    for title, within, module in COMMANDS:
        print(title, file=sys.stderr, flush=True)
        yield f"| {title} | {within} | {last_line(module)} | `{module}` | {date.today().isoformat()} |"


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
        return f"**MISSED**: {last}"
    return f"**NOT RUN**: {last}" if "skipped" in last else last


if __name__ == "__main__":
    sys.exit(main())
