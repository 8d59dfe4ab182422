"""Faults of real processes in the report: raised and restarted, NaN and killed, a signal, a crash."""

import json
import signal
from pathlib import Path

import pytest

import traincope
from tests.cli.test_commands import run
from tests.record.process.test_signals import start
from traincope.analysis import Fault, FaultKind
from traincope.engine.launch import Launch, launch
from traincope.errors import TrainingError
from traincope.store.job.launcher import notes_path


def faults_of(run_directory: Path) -> list[Fault]:
    return [fault for fault in traincope.analyze(traincope.open_run(run_directory)).faults if not fault.is_mark]


def fail(run_directory: Path) -> None:
    with traincope.run(run_directory) as recording:
        recording.step()
        recording.log(loss=1 / 0)


@pytest.mark.sweep
def test_a_restart_a_nan_and_a_killed_rank_stand_first_in_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`faulty_worker`: rank 1 raises; in the next attempt rank 0 logs a NaN, and rank 1 is killed in step 4.

    Its traceback is on standard error, whole, though torch holds back what is printed there while a rank ends.
    """
    out = tmp_path / "run"
    job = Launch(
        ranks=2, arguments=(str(out),), max_restarts=1, module="tests.cli.launch.faulty_worker", notes=notes_path(out)
    )
    with pytest.raises(TrainingError, match="rank 1 was killed by SIGKILL"):
        launch(job)
    printed = capfd.readouterr().err
    assert "[rank1]: Traceback (most recent call last):\n" in printed
    assert "[rank1]: ValueError: a fault on purpose\n" in printed

    text = run("report", str(out)).stdout
    assert text.index("FAULTS") < text.index("was killed (signal 9), noted by the launcher") < text.index("VERDICT")
    document = json.loads(run("report", str(out), "--format", "json").stdout)
    restart, bad, killed = (fault for fault in document["faults"] if not fault["follows"] and not fault["mark"])
    assert (restart["kind"], restart["what"]) == ("restart", "attempt 1: rank 1 raised ValueError")
    assert (bad["kind"], bad["ranks"], bad["step"], bad["what"]) == ("not_finite", [0], 1, "loss is NaN")
    assert (killed["kind"], killed["ranks"], killed["step"]) == ("killed", [1], 4)
    assert killed["what"] == "was killed (signal 9), noted by the launcher"
    assert document["verdict"][0]["kind"] == "killed_rank"
    goodput = document["goodput"]
    assert [attempt["steps"] for attempt in goodput["attempts"]] == [3, 4]
    assert (goodput["steps_done"], goodput["steps_lost"]) == (7, None)  # no checkpoint was seen: nothing tells
    assert goodput["restart_ns"] == restart["lasted_ns"] > 0


@pytest.mark.parametrize(
    ("number", "kind", "what"),
    [
        (signal.SIGTERM, FaultKind.STOPPED, "every rank got SIGTERM"),
        (signal.SIGSEGV, FaultKind.SIGNAL, "Segmentation fault (SIGSEGV) in wait (threading.py:"),
    ],
)
def test_a_signal_is_reported_with_the_interrupted_line(
    tmp_path: Path, number: signal.Signals, kind: FaultKind, what: str
) -> None:
    process = start(tmp_path)
    process.send_signal(number)
    process.wait(timeout=90)
    first = faults_of(tmp_path / "run")[0]
    assert first.kind == kind
    assert first.what.startswith(what)


def test_an_exception_is_reported_with_type_and_line(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fail(tmp_path / "run")
    (fault,) = faults_of(tmp_path / "run")
    assert (fault.kind, fault.ranks, fault.step) == (FaultKind.EXCEPTION, (0,), 0)
    assert fault.what == "ZeroDivisionError: division by zero at test_faults.py:25"
