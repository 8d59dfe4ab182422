"""torchft 0.2's replica groups, unchanged: two jobs of one rank each, one of them 200 ms late in every step."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.environments import python_of
from tests.ports import free_port

pytestmark = pytest.mark.integrations

PROGRAM = Path(__file__).with_name("programs") / "replica_torchft.py"
LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind=f"0.0.0.0:{sys.argv[1]}", min_replicas=2, join_timeout_ms=60_000)
time.sleep(600)
"""
TIMEOUT_SECONDS = 300


@pytest.fixture(scope="module")
def lighthouse() -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen([python_of("torchft"), "-c", LIGHTHOUSE, str(port)])
    yield f"http://127.0.0.1:{port}"
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def runs(lighthouse: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, jobs = tmp_path_factory.mktemp("torchft"), []
    python = str(python_of("torchft"))
    for replica, late in enumerate(("0", "0.2")):
        launcher = [python, "-m", "torch.distributed.run", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        command = [python, "-m", "traincope.cli.main", "run", "--out", str(folder / str(replica)), "--"]
        command += [*launcher, f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(PROGRAM)]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "REPLICA": str(replica),
            "LATE_SECONDS": late,
            "FAILS": "10",
            "TORCHFT_LIGHTHOUSE": lighthouse,
            "TRAINCOPE_WORKFLOW": "torchft",
            "TRAINCOPE_ROLE": f"replica-{replica}",
        }
        with (folder / f"{replica}.log").open("wb") as log:
            jobs.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    for replica, job in enumerate(jobs):
        assert job.wait(TIMEOUT_SECONDS) == 0, (folder / f"{replica}.log").read_text()[-2_000:]
    return [folder / "0", folder / "1"]


def report(*runs: Path) -> Any:
    command = [str(python_of("torchft")), "-m", "traincope.cli.main", "report", *map(str, runs), "--format", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_alone_the_early_group_may_wait_and_gets_no_advice_about_bytes(runs: list[Path]) -> None:
    document = report(runs[0])
    found = [each for each in document["verdict"] if "on replica" in each["evidence"]]
    assert [(each["kind"], each["confidence"]) for each in found] == [("exposed_communication", "unknown")]
    assert "they may be waiting" in found[0]["evidence"]
    assert not any("bf16" in finding["advice"] for finding in document["verdict"])


def test_quorum_and_commit_are_terms_and_events(runs: list[Path]) -> None:
    """Both groups report an error in step 10, so its update is discarded, and made again."""
    for run in runs:
        document = report(run)
        assert document["ledger"]["terms"]["span.commit"] > 0
        assert document["ledger"]["terms"]["span.quorum"] > 0
        events = [each["what"] for each in document["faults"]]
        assert any("quorum" in each for each in events), events
        assert any("torchft discards the update: RuntimeError" in each for each in events), events


def test_together_the_late_group_is_named(runs: list[Path]) -> None:
    together = report(*runs)
    early, late = together["exchanges"]
    assert early["wait_ratio"] > 2 * late["wait_ratio"]
    assert late["awaited_ratio"] > 2 / 3
    assert any(sentence.startswith("replica-1 is late: ") for sentence in together["sentences"])
