"""One program, bare and recorded: its losses and exit codes, and the verdict."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from evaluation.score.reports.grading import WRONG, grade, has_changed
from evaluation.score.reports.truths import Truth

BIN = Path(sys.executable).parent
STILL_SECONDS = 420.0
"""A program whose losses stop for this long stands still, and is ended."""
END_SECONDS = 60.0
STOPPED = -int(signal.SIGTERM)
"""Code of a launch that the score ended. The launcher's own is not the training's: at a SIGTERM, the C++ runtime may
abort torchrun, if its keep-alive thread is in a call of the store while the interpreter ends.
"""
CHANGED, BROKEN = "wrong: the training changed", "wrong: no report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the launches of a program ended."""

    codes: list[int]
    """Exit codes of the launches; `STOPPED` where the score ended one."""
    losses: dict[str, str]
    """File -> what a rank wrote into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    name: str
    grade: str
    finding: str
    """The first finding: kind, ranks, confidence and evidence; or why there is none."""
    run: Path
    """Run directory. It is kept if the grade is not right."""


def judge(truth: Truth, *, keep: Path, bare: Path) -> Outcome:
    """Run a program bare and recorded. `bare`: folder of bare ends, which are the same each time on one machine."""
    folder = keep / truth.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    expected = bare_end(truth, bare)
    recorded = _launch(truth, folder / "work", recording=folder / "run")
    report = subprocess.run(
        [BIN / "traincope", "report", folder / "run", "--format", "json"], capture_output=True, text=True, check=False
    )
    if report.returncode:
        return Outcome(name=truth.name, grade=BROKEN, finding=report.stderr.strip()[-200:], run=folder)
    (folder / "report.json").write_text(report.stdout)
    verdict = json.loads(report.stdout)["verdict"]
    wrote = folder / "work" / "gain"
    graded = grade(verdict, truth, gain=float(wrote.read_text()) if wrote.exists() else None)
    if _differ(expected, recorded):
        expected = bare_end(truth, bare, again=True)  # gloo may fail at the end of a bare program on a busy machine
    if _differ(expected, recorded):
        graded = f"{CHANGED}: exit codes {expected.codes} bare, {recorded.codes} recorded"
    return Outcome(name=truth.name, grade=graded, finding=_sentence(verdict), run=folder)


def _differ(expected: Ended, recorded: Ended) -> bool:
    return has_changed(expected.losses, recorded.losses) or expected.codes != recorded.codes


def bare_end(truth: Truth, folder: Path, *, again: bool = False) -> Ended:
    """Return how a program ends without traincope; it runs if `folder` does not have its end already, or `again`."""
    digest = sha256(f"{truth.program.read_text()} {truth.nproc} {torch.__version__} {STOPPED}".encode()).hexdigest()[
        :12
    ]
    path = folder / f"{truth.name}-{digest}.json"
    if again or not path.exists():
        with tempfile.TemporaryDirectory(prefix="score-reports-") as work:
            ended = _launch(truth, Path(work) / "work", recording=None)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"codes": ended.codes, "losses": ended.losses}))
    return Ended(**json.loads(path.read_text()))


def is_wrong(outcome: Outcome) -> bool:
    return outcome.grade.startswith(WRONG)


def _launch(truth: Truth, work: Path, *, recording: Path | None) -> Ended:
    work.mkdir()
    launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", str(truth.nproc)]
    command: list[Any] = [*([sys.executable] if truth.starts_ranks else launcher), truth.program]
    if recording is not None:
        command = [BIN / "traincope", "run", "--out", recording, "--", *command]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TRAINCOPE_RUN_ID": truth.name,
        "LOSS_OUT": str(work / "loss"),
    }
    with (work.parent / f"{work.name}.log").open("ab") as log:
        codes = [_end(command, work, environment, log) for _ in range(1 + truth.twice)]
    return Ended(codes=codes, losses={path.name: path.read_text() for path in sorted(work.glob("loss.*"))})


def _end(command: list[Any], work: Path, environment: dict[str, str], log: Any) -> int:
    process = subprocess.Popen(command, cwd=work, env=environment, stdout=log, stderr=log, start_new_session=True)
    size, since = -1, time.monotonic()
    while process.poll() is None and time.monotonic() - since < STILL_SECONDS:
        written = sum(path.stat().st_size for path in work.glob("loss.*"))
        if written != size:
            size, since = written, time.monotonic()
        time.sleep(0.2)
    if (code := process.poll()) is not None:
        return code
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return STOPPED


def _sentence(verdict: list[dict[str, Any]]) -> str:
    first = verdict[0]
    return f"{first['kind']} {first.get('ranks') or 'no rank'}, {first['confidence']}: {first['evidence']}"
