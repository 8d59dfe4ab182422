"""Start of the node's agent: it costs the training nothing, and a failed start does not affect it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.live.processes import agents_of, lock_of, until
from traincope.record.session import agent as starting
from traincope.record.session.identity import this_host
from traincope.record.session.options import Options, resolved_agent, resolved_memory_peaks, resolved_witness
from traincope.record.session.rendezvous import Place
from traincope.store import read_run
from traincope.store.job.process import Process
from traincope.store.layout import AGENT_LOG

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"
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
WATCHES_ITS_CHILDREN = """
import os, signal, sys, threading
import traincope
signals, ended = [], []
signal.signal(signal.SIGCHLD, lambda *_: signals.append("signal"))
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
waiting = threading.Thread(target=lambda: ended.append(os.waitpid(-1, 0)[0]))
waiting.start()
with traincope.run(sys.argv[1]) as run:
    for _ in range(3):
        run.step()
os.close(writing)
waiting.join()
print(len(signals), "signal,", "its own child" if ended == [child] else ended)
"""


def run_script(out: Path, script: str = NO_CHILD, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, str(out)],
        env={**os.environ, "TRAINCOPE_AGENT": "on", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )


def test_the_agent_is_not_a_child_of_the_training(tmp_path: Path) -> None:
    ended = run_script(tmp_path / "run")
    assert (ended.stdout, ended.stderr) == ("no child\n", "")
    until(lambda: (tmp_path / "run/attempt-000/rank-00000/rows.jsonl").exists(), "its rows")
    until(lambda: not agents_of(tmp_path / "run"), "its end")
    assert not lock_of(tmp_path / "run").exists()


def test_a_training_that_looks_after_its_children_sees_no_other_one(tmp_path: Path) -> None:
    ended = run_script(tmp_path / "run", WATCHES_ITS_CHILDREN)
    assert (ended.stdout, ended.stderr) == ("1 signal, its own child\n", "")
    until(lambda: (tmp_path / "run/attempt-000/rank-00000/rows.jsonl").exists(), "rows of its agent")


def test_training_continues_if_no_process_can_be_started(
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
    assert held is not None  # nothing keeps the lock from an agent that is started by hand
    os.close(held)
    lock_of(tmp_path / "run").unlink()


def test_no_agent_is_started_when_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import traincope

    monkeypatch.setattr(starting, "SHELL", ("/nowhere/sh",))
    monkeypatch.setenv("TRAINCOPE_AGENT", "on")
    with traincope.run(tmp_path / "run", agent=False) as run:
        run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert "agent.start_agent" not in rank.info.probes


@pytest.mark.parametrize(
    ("given", "variable", "expected"), [(True, "", True), (True, "off", False), (False, "on", False)]
)
def test_the_environment_can_only_switch_the_agent_off(
    given: bool, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCOPE_AGENT", variable)
    assert resolved_agent(Options(agent=given)) is expected


def test_the_agents_environment_does_not_record_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE_NOTES", "/notes")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("TRAINCOPE_SHIP", "off")
    place = Place(rank=0, world_size=1, run_id="a", name="a", run=tmp_path, attempt=0, directory=tmp_path)
    assert starting._environment(place, ship=None)["TRAINCOPE_SHIP"] == "off"
    expected = starting._environment(replace(place, named=tmp_path / "named"), ship="s3://bucket/runs")
    assert (expected["TRAINCOPE_SHIP"], expected["TRAINCOPE_NAMED"]) == ("s3://bucket/runs", f"{tmp_path}/named")
    assert "TRAINCOPE_NOTES" not in expected
    assert (expected["TRAINCOPE"], expected["OMP_NUM_THREADS"]) == ("off", "1")
    assert starting._local_ranks() == ("--ranks", "4")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert starting._local_ranks() == ()


def test_only_the_last_rank_of_a_host_waits_for_the_shipping(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without an agent the wait ends with a warning; a rank does not begin it while another one runs."""
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    place = Place(
        rank=1, world_size=4, run_id="a", name="a", run=run, attempt=0, directory=run / "attempt-000" / "rank-00001"
    )
    this = Process.this()
    assert this is not None
    manifest = run / "attempt-000" / "rank-00000" / "rank.json"
    running = {**json.loads(manifest.read_text()), "ending": None, "process": asdict(this), "host": this_host().name}
    manifest.write_text(json.dumps({**running, "boot_id": this_host().boot_id}))
    starting.await_shipping(place)
    assert caplog.text == ""
    manifest.write_text(json.dumps({**running, "boot_id": this_host().boot_id, "ending": "clean"}))
    starting.await_shipping(place)
    assert "not all records were shipped" in caplog.text


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [(False, "", False), (True, "", True), (False, "on", True), (True, "off", False), (True, "odd", True)],
)
def test_the_allocator_s_peaks_are_the_training_s_unless_its_owner_allows_it(
    given: bool, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCOPE_MEMORY_PEAKS", variable)
    assert resolved_memory_peaks(Options(memory_peaks=given)) is expected


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [(False, "", False), (True, "", True), (False, "on", True), (True, "off", False), (True, "odd", True)],
)
def test_witness_copies_are_off_unless_they_are_switched_on(
    given: bool, variable: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCOPE_WITNESS", variable)
    assert resolved_witness(Options(witness=given)) is expected


def test_the_agent_has_the_key_of_the_job_and_shows_it_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its arguments, nor its environment, nor any file of the run, nor the place's text contains the key."""
    import traincope

    out, key = tmp_path / "run", "5ec2e7" * 10 + "5ec2"
    monkeypatch.setenv("TRAINCOPE_WITNESS", "on")
    with traincope.run(out) as run:
        run.step()
        assert run._recorder is not None
        run._recorder.settle(True)
        directory = out / "attempt-000/rank-00000"
        place = Place(rank=0, world_size=1, run_id="a", name="a", run=out, attempt=0, directory=directory, key=key)
        starting.start_agent(place, 1 << 30)
        log = directory / AGENT_LOG
        until(lambda: "other agents reach this one at 127.0.0.1" in log.read_text(), "its start with the key")
        (agent,) = agents_of(out)
        process = Path(f"/proc/{agent}")
        assert key.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        assert key not in repr(place)
    until(lambda: not agents_of(out), "its end")
    assert not [path for path in out.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
