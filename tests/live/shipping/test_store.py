"""Real ranks ship to moto's S3 on loopback. Their agent is killed in the middle, and the store stands still."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.processes import agents_of, the_agent_of, until
from tests.s3 import BUCKET, S3, files, s3_server
from traincope.live.shipping.folding import MAX_PER_HOUR
from traincope.store.places.archives import archive_number

pytestmark = [pytest.mark.launchers, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[3]
URL = f"s3://{BUCKET}/runs"
SECRET = "a-key-that-no-file-may-hold"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as running:
        yield running


def variables(server: S3, tmp_path: Path, **more: str) -> Mapping[str, str]:
    return {
        **os.environ,
        **server.environment,
        "PYTHONPATH": str(ROOT),
        "TRAINCOPE_AGENT": "on",
        "TRAINCOPE_AGENT_INTERVAL": "0.5",
        "TRAINCOPE_SHIP": URL,
        "TRAINCOPE_SHIP_INTERVAL": "1",
        "TRAINCOPE_SHIP_WAIT": "120",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        **more,
    }


PAUSED_STEP = 20


def training(
    run: Path, *, steps: int, environment: Mapping[str, str], log: Path, resume: Path | None = None
) -> subprocess.Popen[bytes]:
    """`resume`: in one step the ranks wait for this file."""
    pause = ("-1", "/nowhere") if resume is None else (str(PAUSED_STEP), str(resume))
    words = [BIN / "torchrun", "--nproc-per-node", "2", "--standalone", "-m", "tests.live.peers.training"]
    with log.open("wb") as file:
        return subprocess.Popen(
            [*words, run, *pause],
            env={**environment, "STEPS": str(steps)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def traincope(*words: object, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    command = [str(BIN / "traincope"), *map(str, words)]
    return subprocess.run(command, env={**environment, "TRAINCOPE_SHIP": ""}, capture_output=True, check=False)


def report(place: object, environment: Mapping[str, str]) -> bytes:
    ended = traincope("report", place, "--format", "json", environment=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def objects(server: S3, run: Path) -> set[str]:
    """Names of the run's objects. s3fs lists the run itself if its first object appears meanwhile."""
    place = f"{BUCKET}/runs/{run.name}/"
    return {path.removeprefix(place) for path in files(server).find(place) if path.startswith(place)}


def of_ranks(run: Path) -> dict[str, bytes]:
    """All files of ranks, as far as something was written into them."""
    paths = (path for path in run.glob("attempt-000/rank-*/*") if path.is_file() and path.stat().st_size)
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths if path.suffix != ".room"}


def fetch_all(url: str, environment: Mapping[str, str]) -> dict[str, bytes]:
    """Files of ranks in the copy that a command makes."""
    program = f"from traincope.store.places.fetched import local_copy; print(local_copy({url!r}))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return of_ranks(Path(done.stdout.strip()))


@contextmanager
def zipped(server: S3, name: str) -> Iterator[zipfile.ZipFile]:
    """An archive, opened by its URL as any other program would."""
    (path,) = (path for path in files(server).find(BUCKET) if path.endswith(name))
    with files(server).open(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


def archives(server: S3, run: Path) -> set[str]:
    return {name for name in objects(server, run) if archive_number(name) is not None}


def test_the_report_of_the_store_is_that_of_the_run(server: S3, tmp_path: Path) -> None:
    run, environment = tmp_path / "whole", variables(server, tmp_path)
    process = training(run, steps=60, environment=environment, log=tmp_path / "log")
    assert process.wait() == 0, (tmp_path / "log").read_text()
    until(lambda: not agents_of(run), "the agent's end")
    assert report(f"{URL}/whole", environment) == report(run, environment)
    shipped = archives(server, run)
    assert 1 <= len(shipped) <= 2 * MAX_PER_HOUR  # the hour may have changed
    assert objects(server, run) - shipped <= {"run.json", "attempt-000/launch.json", "launcher.jsonl"}
    (listed,) = json.loads(traincope("ls", URL, "--format", "json", environment=environment).stdout)
    assert (listed["path"], listed["state"], listed["world_size"]) == (f"{URL}/whole", "done", 2)
    query = ("select count(*) as n from steps", "--format", "json")
    of_store, of_run = (traincope("sql", place, *query, environment=environment) for place in (f"{URL}/whole", run))
    assert (of_store.returncode, of_store.stdout) == (0, of_run.stdout)
    recorded = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    with zipped(server, max(shipped)) as archive:
        stored = b"".join(map(archive.read, archive.namelist()))
    assert SECRET.encode() not in recorded + stored


def test_another_command_continues_a_shipment_whose_agent_was_killed(server: S3, tmp_path: Path) -> None:
    run, environment = tmp_path / "killed", variables(server, tmp_path)
    resume = tmp_path / "resume"
    process = training(run, steps=40, environment=environment, log=tmp_path / "log", resume=resume)
    until(lambda: bool(archives(server, run)), "the first archive")
    server.process.send_signal(signal.SIGSTOP)
    agent = the_agent_of(run)
    time.sleep(3)  # a round is due every second: the agent waits for the store to take an archive
    os.kill(agent, signal.SIGKILL)
    server.process.send_signal(signal.SIGCONT)
    resume.touch()
    assert process.wait() == 0, (tmp_path / "log").read_text()
    assert b"not all records were shipped" in (tmp_path / "log").read_bytes()
    doctor = traincope("doctor", run, environment=environment).stdout.decode()
    assert "not shipped" in doctor
    ended = traincope("ship", run, environment=environment)
    assert ended.returncode == 0, ended.stderr
    assert report(f"{URL}/killed", environment) == report(run, environment)
    assert len(archives(server, run)) <= 2 * MAX_PER_HOUR
    copy = fetch_all(f"{URL}/killed", environment)
    assert copy == {name: content for name, content in of_ranks(run).items() if name in copy}
    assert {Path(name).suffix for name in of_ranks(run).keys() - copy.keys()} <= {".log"}


def test_a_store_that_does_not_answer_delays_no_step_and_the_exit_only_so_long(server: S3, tmp_path: Path) -> None:
    run = tmp_path / "silent"
    environment = variables(server, tmp_path, TRAINCOPE_SHIP_WAIT="1")
    server.process.send_signal(signal.SIGSTOP)
    try:
        process = training(run, steps=60, environment=environment, log=tmp_path / "log")
        assert process.wait() == 0, (tmp_path / "log").read_text()
        for agent in agents_of(run):
            os.kill(agent, signal.SIGKILL)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert objects(server, run) == set()
    assert b"not all records were shipped" in (tmp_path / "log").read_bytes()
    document = json.loads(report(run, environment))
    assert document["recorder"]["problems"] == []
    assert traincope("ship", run, environment=environment).returncode == 0
    assert json.loads(report(f"{URL}/silent", environment)) == document
