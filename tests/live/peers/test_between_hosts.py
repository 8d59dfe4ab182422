"""Hosts made of namespaces. The last rank is at fault, and all agents name it."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.live.peers.group_training import CULPRIT
from tests.live.peers.hosts import MadeHost, hosts, why_not
from tests.live.peers.jobs import Job, report, started
from tests.live.processes import until
from traincope.store.layout import METRICS_FILES

REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
TRAINING = "tests.live.peers.group_training"
FAULTY_STEP = 200
METRICS = {"TRAINCOPE_METRICS": "127.0.0.1:0"}
HANG_AT_ONCE = {"TRAINCOPE_HANG_SECONDS": "6"}
"""A stop is a hang after 6 seconds in place of a minute."""
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


def is_counted(host: MadeHost, job: Job, kind: str, *, culprit: int = CULPRIT) -> bool:
    """True if the host's agent, which serves metrics to the host only, counts one fault of this kind for the rank."""
    (path,) = job.runs[host.name].glob(METRICS_FILES)
    address = json.loads(path.read_text())["prometheus"]
    served = subprocess.run(
        host.command(sys.executable, "-c", GET, address), check=True, capture_output=True, text=True
    )
    series = [line for line in served.stdout.splitlines() if line.startswith("traincope_faults_total")]
    return any(f'kind="{kind}"' in line and f'rank="{culprit}"' in line and line.endswith(" 1.0") for line in series)


def logged(job: Job, host: str, word: str) -> list[str]:
    """Sentences of the agent's log, of one kind."""
    return [line.partition(f"{word}: ")[2] for line in job.agent_log(host).splitlines() if f" {word}: " in line]


def hang_of(document: Mapping[str, Any]) -> dict[str, Any]:
    (hang,) = document["hangs"]
    return dict(hang)


@pytest.mark.sweep
def test_both_agents_name_the_rank_that_left_out_a_collective_while_the_job_runs(tmp_path: Path) -> None:
    """Rank 3 issues one all-reduce of three fewer. Each host sees two ranks of its own, and two by copies."""
    with (
        hosts("a", "b") as made,
        started(tmp_path, made, training=(TRAINING, "skip", FAULTY_STEP), ranks=2, **METRICS) as job,
    ):
        for host in ("a", "b"):
            job.until(lambda host=host: bool(logged(job, host, "mismatch")), f"the agent of {host}")
        for host in made:
            until(lambda host=host: is_counted(host, job, "mismatch"), f"the metrics of {host.name}")
        live = {host.name: hang_of(report(job.runs[host.name])) for host in made}
        time.sleep(7)  # copies of 5 s no longer show it
    for host in ("a", "b"):
        hang, (sentence,) = hang_of(report(job.runs[host])), logged(job, host, "mismatch")
        assert (hang["kind"], hang["culprits"], hang["step"], hang["lasted_ns"]) == (
            *("mismatch", [CULPRIT], FAULTY_STEP, None),
        )
        assert "3 of 4 ranks issued 3 in step 200" in hang["evidence"]
        assert sentence.startswith(hang["evidence"])
        assert live[host]["evidence"] == hang["evidence"]
        assert logged(job, host, "hang") == []


@pytest.mark.sweep
def test_with_three_hosts_each_agent_compares_with_both_others(tmp_path: Path) -> None:
    """One rank each. Only the three together have a majority, so an agent that saw two would name no rank."""
    training = (TRAINING, "skip", FAULTY_STEP)
    with hosts("a", "b", "c") as made, started(tmp_path, made, training=training) as job:
        for host in job.runs:
            job.until(lambda host=host: bool(logged(job, host, "mismatch")), f"the agent of {host}")
    for host in job.runs:
        hang, (sentence,) = hang_of(report(job.runs[host])), logged(job, host, "mismatch")
        assert (hang["kind"], hang["culprits"], hang["step"]) == ("mismatch", [2], FAULTY_STEP)
        assert "2 of 3 ranks issued 3 in step 200" in hang["evidence"]
        assert sentence.startswith(hang["evidence"])


@pytest.mark.sweep
@pytest.mark.parametrize(("ranks", "budget"), [(1, ()), (2, ()), (2, (0.005,))])
def test_the_agent_of_the_waiting_host_names_the_rank_of_the_other_that_sleeps(
    tmp_path: Path, ranks: int, budget: tuple[float, ...]
) -> None:
    """With so many ranks on each host."""
    *victims, culprit = range(2 * ranks)
    with (
        hosts("a", "b") as made,
        started(
            tmp_path, made, training=(TRAINING, "sleep", FAULTY_STEP, *budget), ranks=ranks, **METRICS, **HANG_AT_ONCE
        ) as job,
    ):
        for host in ("a", "b"):
            job.until(
                lambda host=host: f"hang: rank {culprit} stood at group_training.py:" in job.agent_log(host),
                f"the agent of {host}",
            )
        for host in made:
            until(lambda host=host: is_counted(host, job, "hang", culprit=culprit), f"the metrics of {host.name}")
        live = hang_of(report(job.runs["a"]))
    for hang in (live, hang_of(report(job.runs["a"]))):
        assert (hang["kind"], hang["culprits"], hang["victims"], hang["step"]) == (
            *("stuck", [culprit], victims, FAULTY_STEP),
        )
        assert hang["host"] == "b"
        assert "group_training.py" in hang["call_site"]
        assert any("sleep_for_ever" in frame for frame in hang["stack"])


@pytest.mark.sweep
def test_in_a_shared_run_directory_both_agents_find_the_mismatch(tmp_path: Path) -> None:
    with (
        hosts("a", "b") as made,
        started(tmp_path, made, training=(TRAINING, "skip", FAULTY_STEP), ranks=2, shared=True) as job,
    ):
        job.until(lambda: len(logged(job, "a", "mismatch")) == 2, "both agents")
        hang = hang_of(report(job.runs["a"]))
    assert (hang["kind"], hang["culprits"], hang["step"]) == ("mismatch", [CULPRIT], FAULTY_STEP)
    assert all(sentence.startswith(hang["evidence"]) for sentence in logged(job, "a", "mismatch"))


@pytest.mark.sweep
@pytest.mark.parametrize("budget", [(), (0.005,)])
def test_equal_collectives_of_hosts_are_no_mismatch(tmp_path: Path, budget: tuple[float, ...]) -> None:
    """Copies are compared for half a minute, with and without windows."""
    with hosts("a", "b") as made, started(tmp_path, made, training=(TRAINING, "none", 0, *budget), ranks=2) as job:
        job.until(lambda: all(list(run.glob("attempt-000/witness/*/rank-*")) for run in job.runs.values()), "copies")
        time.sleep(30)
        documents = [report(job.runs[host.name]) for host in made]
    assert [document["hangs"] for document in documents] == [[], []]
    for host in ("a", "b"):
        assert logged(job, host, "mismatch") == logged(job, host, "hang") == []
        assert not (job.runs[host] / "attempt-000/compared").exists()


@pytest.mark.sweep
def test_a_collective_that_was_left_out_of_a_sampled_run_is_found_at_the_next_window(tmp_path: Path) -> None:
    with hosts("a", "b") as made, started(tmp_path, made, training=(TRAINING, "skip", 210, 0.005), ranks=2) as job:
        for host in ("a", "b"):
            job.until(lambda host=host: bool(logged(job, host, "mismatch")), f"the agent of {host}")
    for host in ("a", "b"):
        hang, (sentence,) = hang_of(report(job.runs[host])), logged(job, host, "mismatch")
        assert (hang["kind"], hang["culprits"]) == ("mismatch", [CULPRIT])
        assert sentence.startswith(hang["evidence"])
