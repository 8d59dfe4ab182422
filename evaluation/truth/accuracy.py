"""The table of docs/develop/accuracy.md. `python -m evaluation.truth.accuracy` runs its rows and writes it.

It writes all rows of one commit, or nothing: it refuses a tree with uncommitted changes, before and after. A row shows
the last line of its command's output. A row that misses its limit says MISSED, one of which the machine's noise hides
whether it does says NOT SHOWN, and both stay: rows are kept by commit, so an interrupted run goes on where it was, and
no row runs twice. Trainings that sleep take no core, so the commands of
several such rows run at once; the machine's noise, which each of them measures, decides what they measure again. The
seconds of each command go to stderr, and all that it prints is kept next to the rows.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import torch

from benchmarks.judging import NOT_SHOWN_EXIT
from evaluation.written import UncommittedError, commit, write_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "develop" / "accuracy.md"
KEPT = ROOT / "traincope_runs" / "accuracy"
"""Rows of each commit."""
MISSED, NOT_SHOWN, NOT_RUN = "**MISSED**", "**NOT SHOWN**", "**NOT RUN**"
COMMANDS = (
    ("published formulas, MFU to bubbles", "as printed, or what each allows", "evaluation.truth.formulas.published"),
    ("FLOPs counted in every layout", "1 % of the model's", "evaluation.truth.formulas.flops"),
    (
        "the ledger of known trainings",
        "1 % of a step, 3 % where the machine's noise is more",
        "evaluation.truth workloads",
    ),
    ("the bubble of known pipelines", "1 point of a step", "evaluation.truth.pipelines.bubble"),
    ("what a change would make of a step", "3 % of a step", "evaluation.truth what-if"),
    ("gains of eight changes, then made", "a fifth of the gain, or 1 % of a step", "evaluation.truth predicted"),
    ("peak memory of real ranks", "5 %", "evaluation.truth.memory.peaks"),
    ("steps of layouts, by the rates of another", "15 % of a step", "evaluation.truth.layouts.step_times"),
    ("differences between two trainings", "3 % of a step", "evaluation.truth diff"),
    ("clocks of simulated runs", "the stated bound", "evaluation.truth.machines.clocks"),
    ("real GPU traces", "not a nanosecond", "pytest -q tests/ingest/test_public_traces.py"),
)
"""The compared quantity, its limit, and the module that compares it."""
ASLEEP = ("evaluation.truth.pipelines.bubble", "evaluation.truth workloads", "evaluation.truth what-if")
"""Modules whose trainings sleep, and are compared with what they did themselves. Some of `predicted` multiply, and
`diff` compares trainings with each other, so their surroundings must be the same: these run alone.
"""
AT_ONCE = 3


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
    return int(any(mark in line for line in lines for mark in (MISSED, NOT_SHOWN, NOT_RUN)))


def _table(measured: str) -> Iterator[str]:
    modules = [module for _, _, module in COMMANDS]
    asleep = [module for module in modules if module in ASLEEP]
    awake = [module for module in modules if module not in ASLEEP]
    results = {**_results(asleep, measured, at_once=AT_ONCE), **_results(awake, measured, at_once=1)}
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
    yield f"Commit {measured}, {date.today().isoformat()}: {versions}."
    yield ""
    yield "| compared with a known truth | limit | last line of the command's output | `.venv/bin/python -m` |"
    yield "|---|---|---|---|"
    for title, within, module in COMMANDS:
        yield f"| {title} | {within} | {results[module]} | `{module}` |"


def _results(modules: Sequence[str], measured: str, *, at_once: int) -> dict[str, str]:
    """Run the modules that have no row of this commit yet."""
    path = KEPT / f"rows-{measured}.jsonl"
    kept = dict(map(json.loads, path.read_text().splitlines() if path.exists() else ()))

    def one(module: str) -> str:
        if module in kept:
            return str(kept[module])
        began = time.monotonic()
        KEPT.mkdir(parents=True, exist_ok=True)
        line = last_line(module, printed=KEPT / f"{module.replace(' ', '.').replace('/', '.')}-{measured}.txt")
        with path.open("a") as rows:
            rows.write(json.dumps([module, line]) + "\n")
        print(f"{module}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return line

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(modules, pool.map(one, modules), strict=True))


def last_line(module: str, *, printed: Path) -> str:
    """Return the last line that a command prints; a failure or a skip is marked in front of it. `printed` gets all."""
    done = subprocess.run(
        [sys.executable, "-m", *module.split()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    printed.write_text(done.stdout)
    lines = done.stdout.strip().splitlines()
    last = lines[-1].strip("= ") if lines else f"no output; it exited with {done.returncode}"
    if done.returncode:
        return f"{NOT_SHOWN if done.returncode == NOT_SHOWN_EXIT else MISSED}: {last}"
    return f"{NOT_RUN}: {last}" if "skipped" in last else last


if __name__ == "__main__":
    sys.exit(main())
