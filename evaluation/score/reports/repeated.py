"""Programs that run several times, also with another process on each core: is the verdict each time the same?"""

import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date

import torch

from evaluation.score.reports.grading import RIGHT
from evaluation.score.reports.running import Outcome

SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextmanager
def busy_cores() -> Iterator[list[int]]:
    """Keep another process busy on each core that this one may use; their process ids."""
    spinning = [_spin(core) for core in sorted(os.sched_getaffinity(0))]
    try:
        yield [process.pid for process in spinning]
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _spin(core: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    os.sched_setaffinity(process.pid, {core})
    return process


def repeated_lines(outcomes: Mapping[str, Sequence[Outcome]], measured: str, *, busy: bool) -> Iterator[str]:
    """Lines of the page: of each program, how many of its runs were right."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    beside = "with another process on each core" if busy else "with nothing else started"
    yield f"Commit {measured}, {date.today().isoformat()}: {versions}, {os.cpu_count()} cores, {beside}."
    yield ""
    yield "|program|runs|right|other grades|kinds of first findings|"
    yield "|---|---|---|---|---|"
    for name, runs in outcomes.items():
        grades = Counter(outcome.grade.split(":")[0] for outcome in runs)
        others = ", ".join(f"{number} {grade}" for grade, number in sorted(grades.items()) if grade != RIGHT)
        kinds = Counter(outcome.finding.split(" ")[0].replace("_", " ") for outcome in runs)
        firsts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        yield f"|{name.replace('_', ' ')}|{len(runs)}|{grades[RIGHT]}|{others}|{firsts}|"
