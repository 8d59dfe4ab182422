"""A job observed by recorder, agent and watchdog is equal to the bit to a bare one, also if the agent is killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import traincope
from tests.live import steady_worker
from tests.live.processes import agents_of, kill_agents, until
from tests.live.recorded import rank_of
from traincope.store.job.looks import read_looks
from traincope.store.layout import FLIGHT_FILE, HANGS_FILE, attempt_directory

ROOT = Path(__file__).parents[2]
QUICK_AGENT = {
    "TRAINCOPE_AGENT": "on",
    "TRAINCOPE_AGENT_INTERVAL": "0.5",
    "TRAINCOPE_AGENT_SHARE": "1",
    "TRAINCOPE_BUDGET": "0.0001",
}


def start(out: str, folder: Path) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    torchrun = [Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*torchrun, steady_worker.__file__, out, folder],
        env={**os.environ, **QUICK_AGENT, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )


def bits_of(folder: Path) -> list[object]:
    return [json.loads((folder / f"bits-{rank}.json").read_text()) for rank in range(2)]


def test_training_is_equal_to_the_bit_with_agent_watchdog_and_windows_and_after_the_agents_death(
    tmp_path: Path,
) -> None:
    """Rank 0 stands still until the watchdog has taken both ranks' stacks and the flight recorder, and named it. Then
    the agent is killed, and the job trains on to its end.
    """
    out, observed, bare = tmp_path / "run", tmp_path / "observed", tmp_path / "bare"
    process = start(str(out), observed)
    until(lambda: (attempt_directory(out, 0) / HANGS_FILE).exists() or process.poll() is not None, "the watchdog")
    for rank in range(2):
        assert any(look.stack for look in read_looks(rank_of(out, rank)))
        assert (rank_of(out, rank) / FLIGHT_FILE).exists()
    assert len(agents_of(out)) == 1
    kill_agents(out)
    (observed / "go").touch()
    assert process.wait(timeout=100) == 0

    again = start("", bare)
    (bare / "go").touch()
    assert again.wait(timeout=100) == 0
    assert bits_of(observed) == bits_of(bare)
    timeline = traincope.open_run(out)
    assert [len(rank.steps) for rank in timeline.ranks] == [steady_worker.STEPS] * 2
    assert {step.detailed for rank in timeline.ranks for step in rank.steps} == {True, False}
