"""`--on-hang=exit`: a job that hangs ends with its own exit code, and everybody who waits for it reads the culprit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluation.score import training
from tests.cli.test_commands import ENVIRONMENT, run
from tests.live.processes import until
from tests.live.recorded import rank_of, record
from tests.viewer.library.reading import shelf
from tests.viewer.texts import texts
from traincope.cli.launch import hang_exit
from traincope.cli.launch.hang_exit import HangExit
from traincope.cli.main import make_parser
from traincope.errors import HangError
from traincope.store.job.hang_notices import HangNotice, append_notice, read_notices
from traincope.store.layout import AGENT_LOG
from traincope.viewer.pages import FAULTS
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View

DDP = Path(__file__).parents[3] / "examples" / "ddp.toml"
QUICK_AGENT = {"TRAINCOPE_AGENT": "on", "TRAINCOPE_AGENT_INTERVAL": "0.5", "TRAINCOPE_AGENT_SHARE": "1"}
STUBBORN = """
import signal, sys, time
import traincope
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with traincope.run(sys.argv[1], agent=False) as run:
    run.step()
    time.sleep(1000)
"""
"""A rank that stands still and ignores SIGTERM."""


def notice(*, at_wall_ns: int, ends_job: bool = True) -> HangNotice:
    return HangNotice(
        attempt=0, at_wall_ns=at_wall_ns, culprits=(0,), sentence="rank 0 stands still", ends_job=ends_job
    )


def test_a_hang_ends_the_job_and_its_culprit_is_read_in_every_place(tmp_path: Path) -> None:
    """Rank 1 of a DDP training sleeps in step 40, as if in a pod of Kubernetes whose manifest names another file."""
    out, message, python = tmp_path / "run", tmp_path / "message", Path(sys.executable).parent
    message.touch()
    ended = subprocess.run(
        [
            *(python / "traincope", "run", "--on-hang", "exit", "--out", out, "--fault", "sleep@rank=1,step=40", "--"),
            *(python / "torchrun", "--standalone", "--nproc-per-node", "2", training.__file__, "ddp", "150", tmp_path),
        ],
        env={
            **ENVIRONMENT,
            **QUICK_AGENT,
            "TRAINCOPE_BUDGET": "none",
            "TRAINCOPE_HANG_SECONDS": "6",
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "TRAINCOPE_TERMINATION_LOG": str(message),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == HangError.exit_code == 11, ended.stderr
    (settled,) = read_notices(out)
    assert settled.culprits == (1,)
    assert settled.sentence.startswith("hang: rank 1 stood at ")
    assert message.read_text() == f"traincope: {settled.sentence}\n"
    assert settled.sentence in "".join(path.read_text() for path in out.glob(f"attempt-000/rank-*/{AGENT_LOG}"))
    assert "\nhang on rank 1: rank 1 stood at " in ended.stderr
    assert ended.stderr.endswith("\ntraincope: ended the job (--on-hang=exit, exit code 11)\n")
    document = json.loads(run("report", str(out), "--format", "json").stdout)
    assert (document["verdict"][0]["kind"], document["verdict"][0]["ranks"]) == ("hang", [1])
    assert [fault["ranks"] for fault in document["faults"] if fault["kind"] == "hang"] == [[1]]
    assert [hang["culprits"] for hang in document["hangs"]] == [[1]]
    verdict = run("report", str(out)).stdout.partition("VERDICT")[2].splitlines()
    assert verdict[1].startswith(" 1. hang  rank 1, step ")
    library = shelf(out, cache=tmp_path / "cache")
    page = FAULTS.render(Asked(view=View(page="faults"), opened=library[0], library=library, theme="light"))
    assert document["hangs"][0]["evidence"] in texts(page[0])


@pytest.mark.sweep
def test_a_training_that_hangs_ends_with_the_same_code(tmp_path: Path) -> None:
    """The agent's notice is written by the test; the training itself goes on until it is ended."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "traincope.cli.main", "train", DDP, "--on-hang", "exit", "--out", out),
            *("--set", "train.steps=100000", "--set", "parallel.dp=1"),
        ],
        env={**ENVIRONMENT, "TRAINCOPE_AGENT": "on"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: rank_of(out).exists() or process.poll() is not None, "the training")
    append_notice(out, notice(at_wall_ns=time.time_ns()))
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 11, errors
    assert "traincope train: ended the training (--on-hang=exit): rank 0 stands still" in " ".join(errors.split())


def test_ranks_that_outlive_their_command_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell dies of SIGTERM at once, and its rank ignores the signal."""
    monkeypatch.setattr(hang_exit, "RANK_GRACE_SECONDS", 0.2)
    out, script = tmp_path / "run", tmp_path / "rank.py"
    script.write_text(STUBBORN)
    shell = subprocess.Popen(["/bin/sh", "-c", '"$@" & wait', "sh", sys.executable, script, out])
    ending = HangExit(lambda: [out])
    until(lambda: (rank_of(out) / "rank.json").exists() and bool(running(out)), "the rank")
    append_notice(out, notice(at_wall_ns=time.time_ns()))
    assert ending.wait(shell) == -signal.SIGTERM
    assert ending.notice is not None
    until(lambda: not running(out), "the end of the rank")


def running(out: Path) -> list[object]:
    return list(hang_exit._running_ranks(rank_of(out).parent))


def test_a_hang_of_an_earlier_launch_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    append_notice(tmp_path / "run", notice(at_wall_ns=time.time_ns()))
    ending = HangExit(lambda: [tmp_path / "run"])
    assert ending.wait(subprocess.Popen(["/bin/sh", "-c", "sleep 1; exit 3"])) == 3
    assert ending.notice is None


def test_a_stop_that_may_end_by_itself_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", monkeypatch)
    ending = HangExit(lambda: [tmp_path / "run"])
    append_notice(tmp_path / "run", notice(at_wall_ns=time.time_ns(), ends_job=False))
    assert ending.wait(subprocess.Popen(["/bin/sh", "-c", "sleep 1; exit 3"])) == 3
    assert ending.notice is None


def test_a_hang_that_no_agent_would_notice_is_refused() -> None:
    """The tests run without agents."""
    assert os.environ["TRAINCOPE_AGENT"] == "off"
    refused = run("run", "--on-hang", "exit", "--", "true")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "needs the node's agent, which TRAINCOPE_AGENT=off switches off" in refused.stderr


@pytest.mark.parametrize(("value", "expected"), [("", "report"), ("exit", "exit")])
def test_the_variable_is_the_default_of_the_option(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv("TRAINCOPE_ON_HANG", value)
    assert make_parser(["run"]).parse_args(["run", "true"]).on_hang == expected
    assert make_parser(["train"]).parse_args(["train", "x.toml"]).on_hang == expected


def test_another_value_of_the_variable_is_ignored_and_of_the_option_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRAINCOPE_ON_HANG", "stop")
    assert make_parser(["run"]).parse_args(["run", "true"]).on_hang == "report"
    assert caplog.messages == ["TRAINCOPE_ON_HANG must be report or exit, not 'stop': ignored"]
    with pytest.raises(SystemExit):
        make_parser(["run"]).parse_args(["run", "--on-hang", "stop", "true"])
    assert "'stop' is neither report nor exit" in capsys.readouterr().err
