"""One case, bare and recorded: its launches, its losses, and the grade of what is reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluation.score.reports.grading import Finding, grade, has_changed
from evaluation.score.reports.running import BROKEN, CHANGED, Outcome
from evaluation.score.rl.cases import Case
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
TIMEOUT_SECONDS = 600.0


def judge(case: Case, *, keep: Path) -> Outcome:
    """Run a case bare and recorded, and grade the report."""
    folder = keep / case.name
    shutil.rmtree(folder, ignore_errors=True)
    bare = _launch(case, folder / "bare", recorded=False)
    recorded = _launch(case, folder / "recorded", recorded=True)
    runs = {job: folder / "recorded" / (job or "job") / "run" for job in case.jobs}
    chosen = [runs[case.of]] if case.alone else [*runs.values()]
    command = [BIN / "traincope", "report", *chosen, "--format", "json"]
    report = subprocess.run(command, capture_output=True, text=True, check=False)
    if report.returncode:
        return Outcome(name=case.name, grade=BROKEN, finding=report.stderr.strip()[-200:], run=folder)
    (folder / "report.json").write_text(report.stdout)
    verdict = said(case, json.loads(report.stdout))
    graded = grade(verdict, case.truth)
    if has_changed(bare, recorded):
        graded = f"{CHANGED}: its losses"
    return Outcome(name=case.name, grade=graded, finding=_sentence(verdict, case), run=folder)


def said(case: Case, document: dict[str, Any]) -> list[Finding]:
    """Return the findings that are judged: of one job's report, or the sentences about all jobs as one finding.

    A report of several jobs begins with these sentences.
    """
    if case.alone or len(case.jobs) == 1:
        return list(document["verdict"])
    if case.of:
        return list(document["reports"][case.jobs.index(case.of)]["verdict"])
    evidence = " ".join(document["sentences"])
    return [{"kind": "jobs", "ranks": [], "confidence": "medium", "evidence": evidence, "advice": ""}]


def _launch(case: Case, folder: Path, *, recorded: bool) -> dict[str, str]:
    """Run all jobs at once; return the losses by job and rank. Raises RuntimeError if one of them fails."""
    exchange = folder / "exchange"
    exchange.mkdir(parents=True)
    port, processes = str(free_port()), []
    for job in case.jobs:
        own = folder / (job or "job")
        own.mkdir()
        command = [BIN / "torchrun", f"--nproc-per-node={case.truth.nproc}", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", case.truth.program]
        if recorded:
            command = [BIN / "traincope", "run", "--out", own / "run", "--", *command]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "EXCHANGE": str(exchange),
            "REPLICA_PORT": port,
            "LOSS_OUT": str(own / "loss"),
            **case.environment_of(job),
        }
        with (own / "log").open("wb") as log:
            process = subprocess.Popen(
                list(map(str, command)), cwd=own, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        processes.append((own, process))
    try:
        for own, process in processes:
            if process.wait(TIMEOUT_SECONDS):
                raise RuntimeError(f"{own}: {(own / 'log').read_text()[-1_000:]}")
    finally:
        for _, process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.glob("*/loss.*"))}


def _sentence(verdict: list[Finding], case: Case) -> str:
    first = verdict[: case.truth.top]
    return " / ".join(
        f"{each['kind']} {each.get('ranks') or 'no rank'}, {each['confidence']}: {each['evidence']}" for each in first
    )
