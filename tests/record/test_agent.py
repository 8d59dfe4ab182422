"""Starting the node's agent costs the training nothing, and it never notices that it cannot be started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.processes import agents_of, lock_of, until
from traincope.record import agent as starting
from traincope.record.options import Options, told_agent
from traincope.store import read_run

NO_CHILD = """
import os, sys
import traincope
with traincope.run(sys.argv[1]) as run:
    for _ in range(3):
        run.step()
    try:
        os.waitpid(-1, os.WNOHANG)
        print("a child")
    except ChildProcessError:
        print("no child")
"""


def run_script(out: Path, script: str = NO_CHILD, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(out)],
        env={**os.environ, "TRAINCOPE_AGENT": "on", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_the_agent_is_no_child_of_the_training(tmp_path: Path) -> None:
    ended = run_script(tmp_path / "run")
    assert (ended.stdout, ended.stderr) == ("no child\n", "")
    until(lambda: (tmp_path / "run/attempt-000/rank-00000/rows.jsonl").exists(), "its rows")
    until(lambda: not agents_of(tmp_path / "run"), "its end")
    assert not lock_of(tmp_path / "run").exists()


def test_where_no_process_can_be_started_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import traincope

    monkeypatch.setattr(starting, "SHELL", ("/nowhere/sh",))
    monkeypatch.setenv("TRAINCOPE_AGENT", "on")
    with traincope.run(tmp_path / "run") as run:
        run.step()
        run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.ending == "clean"
    assert rank.info.probes["agent.start_agent"] == "failed 1 times: FileNotFoundError"
    assert caplog.text.count("start_agent failed, training goes on") == 1
    held = starting.take_lock(lock_of(tmp_path / "run"))
    assert held is not None  # nobody keeps it from one that is begun by hand
    os.close(held)
    lock_of(tmp_path / "run").unlink()


def test_where_it_was_told_not_to_no_agent_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import traincope

    monkeypatch.setattr(starting, "SHELL", ("/nowhere/sh",))
    monkeypatch.setenv("TRAINCOPE_AGENT", "on")
    with traincope.run(tmp_path / "run", agent=False) as run:
        run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert "agent.start_agent" not in rank.info.probes


@pytest.mark.parametrize(("given", "variable", "told"), [(True, "", True), (True, "off", False), (False, "on", False)])
def test_the_environment_can_only_take_it_away(
    given: bool, variable: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCOPE_AGENT", variable)
    assert told_agent(Options(agent=given)) is told


def test_the_agent_is_told_nothing_that_would_record_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE_NOTES", "/notes")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    told = starting._environment()
    assert "TRAINCOPE_NOTES" not in told
    assert (told["TRAINCOPE"], told["OMP_NUM_THREADS"]) == ("off", "1")
    assert starting._local_ranks() == ("--ranks", "4")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert starting._local_ranks() == ()
