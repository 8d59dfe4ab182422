"""A host is lost for good: its ranks recorded on the node, no disk is shared, and S3 is reached by the network only.

Hosts a and b train, host c is the store. Host b loses its power between two rounds of shipping.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.peers.hosts import MadeHost, hosts, why_not
from tests.live.peers.jobs import ROOT, started
from tests.live.shipping.test_hosts import disk_of, local_run, until
from tests.s3 import BUCKET, KEYS

REASON = why_not()
pytestmark = [pytest.mark.launchers, pytest.mark.timeout(1800), pytest.mark.skipif(bool(REASON), reason=REASON)]
S = 1_000_000_000
SERVER = "from moto.server import main; main(['--host', '0.0.0.0', '--port', '5000'])"
MAKE_BUCKET = f"import fsspec; fsspec.filesystem('s3').mkdir('{BUCKET}')"
URL = f"s3://{BUCKET}/runs/run"
STORE = {**KEYS, "AWS_ENDPOINT_URL": "http://c:5000"}
ALLOWED_NS = 5 * S
INTERVAL_SECONDS = 15
"""The default."""


@contextmanager
def serving(host: MadeHost, *, log: Path) -> Iterator[None]:
    """Serve S3 on the host, until the host ends."""
    server = host.start([sys.executable, "-c", SERVER], log=log, variables={})
    try:
        while "Running on" not in log.read_text():
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        host.close()
        server.wait()


def in_host(host: MadeHost, *words: object, tmp_path: Path) -> str:
    """The output of a command on the host, with the store's variables."""
    variables = [f"{name}={value}" for name, value in STORE.items()]
    cache = f"XDG_CACHE_HOME={tmp_path / 'cache'}"
    command = host.command("env", *variables, cache, f"PYTHONPATH={ROOT}", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def has_local_run(tmp_path: Path, name: str) -> bool:
    return any(disk_of(tmp_path, name).glob("traincope-*/records-*/run.json"))


def read(host: MadeHost, place: object, *, tmp_path: Path) -> dict[str, Any]:
    answer = in_host(host, sys.executable, "-m", "tests.live.shipping.last_records", place, tmp_path=tmp_path)
    return dict(json.loads(answer))


def shipped(host: MadeHost, name: str, *, tmp_path: Path) -> str:
    """The name of the host's newest archive; empty before the first. Each round makes one."""
    files = f"{BUCKET}/runs/run/attempt-000/archives/{name}-*/*.zip"
    program = f"import fsspec; print(max(fsspec.filesystem('s3').glob('{files}'), default=''))"
    return in_host(host, sys.executable, "-c", program, tmp_path=tmp_path).strip()


@pytest.mark.parametrize("spans_per_second", [0, 2_500])
def test_a_lost_host_costs_at_most_five_seconds_of_its_records(tmp_path: Path, spans_per_second: int) -> None:
    variables = {
        "SPANS_PER_SECOND": str(spans_per_second),
        "TRAINCOPE_BUDGET": "none",
        **STORE,
        "STEPS": "100000",
        "TMPDIR": str(tmp_path / "disk"),
        "TRAINCOPE_LOCAL": "on",
        "TRAINCOPE_SHIP": f"s3://{BUCKET}/runs",
        "TRAINCOPE_SHIP_INTERVAL": str(INTERVAL_SECONDS),
    }
    (tmp_path / "disk").mkdir()
    with hosts("a", "b", "c") as (a, b, store), serving(store, log=tmp_path / "store.log"):
        for host in (a, b):
            host.mount(disk_of(tmp_path, host.name), tmp_path / "disk")
        in_host(store, sys.executable, "-c", MAKE_BUCKET, tmp_path=tmp_path)
        training = ("tests.live.peers.training", -1, "/nowhere")
        with started(tmp_path, (a, b), training=training, **variables) as job:
            until(job, lambda: has_local_run(tmp_path, "a"), "a's records")
            at_a = local_run(tmp_path, "a")
            until(job, lambda: any(at_a.glob("attempt-000/witness/b-*/rank-00001/main-*.seg")), "the agents' meeting")
            before = shipped(store, "b", tmp_path=tmp_path)
            until(job, lambda: shipped(store, "b", tmp_path=tmp_path) not in ("", before), "b's shipping")
            time.sleep(0.7 * INTERVAL_SECONDS)
            b.unplug()
            b.kill()

            def log() -> str:
                return "".join(path.read_text() for path in at_a.glob("attempt-000/rank-*/agent.log"))

            deadline = time.monotonic() + 240
            while "hang: host b was lost" not in log():
                assert time.monotonic() < deadline, log()
                time.sleep(0.5)
            a.run("pkill", "-TERM", "-f", "bin/torchrun")
            job.processes["a"].wait()
            while at_a.joinpath("run.json").exists():  # the agent removes it once all has arrived
                assert time.monotonic() < deadline, log()
                time.sleep(0.5)
        truth = read(store, local_run(tmp_path, "b"), tmp_path=tmp_path)["ranks"]["1"]
        stored = read(store, URL, tmp_path=tmp_path)
        words = (sys.executable, "-m", "traincope.cli.main", "report", URL, "--format", "json")
        document = json.loads(in_host(store, *words, tmp_path=tmp_path))
    arrived = stored["ranks"]["1"]
    assert truth["per_second"] > spans_per_second * 0.9
    assert truth["last_ns"] - arrived["last_ns"] <= ALLOWED_NS
    assert arrived["steps"] == truth["steps"][: len(arrived["steps"])]
    assert stored["missing"] == []
    assert len([problem for problem in stored["problems"] if "are from copies that another host kept" in problem]) == 1
    first = document["verdict"][0]
    assert (first["kind"], first["ranks"]) == ("lost_host", [1])
