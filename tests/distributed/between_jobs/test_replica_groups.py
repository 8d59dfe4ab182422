"""Two real jobs of two ranks, joined by gloo groups of their own store. One is 200 ms late in every step."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.between_jobs.launching import BIN, launch, losses

PROGRAM = Path(__file__).with_name("replica_group.py")
LATE_SECONDS = 0.2


def report(*runs: Path) -> Any:
    command = [BIN / "traincope", "report", *runs, "--format", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    settings = [{}, {"LATE_SECONDS": str(LATE_SECONDS)}]
    return launch(PROGRAM, tmp_path_factory.mktemp("recorded"), settings, recorded=True)


def test_a_group_that_is_read_alone_may_wait(runs: list[Path]) -> None:
    document = report(runs[0])
    assert document["ledger"]["terms"]["exposed_wait[replica]"] == 0
    found = [each for each in document["verdict"] if "on replica" in each["evidence"]]
    assert [each["kind"] for each in found] == ["exposed_communication"]
    assert "they may be waiting for a late one" in found[0]["evidence"]
    on_replica = [each for each in document["verdict"] if "replica" in f"{each['evidence']} {each['advice']}"]
    assert not any("bf16" in finding["advice"] for finding in on_replica)


def test_groups_that_are_read_together_split_wait_and_transfer(runs: list[Path]) -> None:
    """Nothing is marked by hand."""
    together = report(*runs)
    early, late = together["exchanges"]
    assert (early["axis"], early["role"], late["role"]) == ("replica", "replica-0", "replica-1")
    assert early["num_collectives"] == late["num_collectives"] >= 2 * 4 * 20
    assert early["wait_ratio"] > 2 * late["wait_ratio"]
    ledgers = [report["ledger"] for report in together["reports"]]
    assert ledgers[0]["terms"]["exposed_wait[replica]"] > ledgers[0]["terms"]["exposed_transfer[replica]"]
    assert any(sentence.startswith("replica-1 is late: ") for sentence in together["sentences"])
    assert late["awaited_ratio"] > 2 / 3
    for role in together["roles"]:
        assert sum(part["ns"] for part in role["parts"]) == role["total_ns"]
        assert role["total_ns"] == 2 * together["elapsed_ns"]
        assert all(part["ns"] > 0 and part["what"] != "no records" for part in role["parts"])


def test_recording_changes_no_loss(runs: list[Path], tmp_path: Path) -> None:
    launch(PROGRAM, tmp_path, [{}, {}], recorded=False)
    assert losses(tmp_path) == losses(runs[0].parents[1])
