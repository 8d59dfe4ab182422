"""Real ranks, whose run directory is on a real network file system."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.processes import agents_of, until
from tests.live.shipping.mounted import Mounted, mounted, why_not
from traincope.events import Kind
from traincope.store import read_run
from traincope.store.places.mounts import mount_of
from traincope.store.places.node_local import is_on_network, local_base

REASON = why_not()
pytestmark = [pytest.mark.launchers, pytest.mark.timeout(1200), pytest.mark.skipif(bool(REASON), reason=REASON)]
ROOT = Path(__file__).parents[3]
STEPS, RANKS = 600, 2


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path / "network") as made:
        yield made


def num_steps(run: Path) -> int:
    """Number of steps that all ranks have recorded."""
    counts = []
    for rank in read_run(run).ranks:
        main = rank.thread("main")
        counts.append(int((main["kind"] == Kind.STEP).sum()))
    return min(counts) if len(counts) == RANKS else 0


def test_it_is_recognized_and_is_no_place_of_the_node(network: Mounted) -> None:
    mount = mount_of(network.path / "runs" / "not-yet")
    assert mount is not None
    assert (mount.point, mount.filesystem, mount.is_remote) == (network.path, "fuse.sshfs", True)
    assert not is_on_network(network.path.parent)
    base = local_base({"TMPDIR": str(network.path)})
    assert base is not None
    assert not base.is_relative_to(network.path)


def test_ranks_record_on_the_node_and_no_step_waits_for_a_server_that_stalls(network: Mounted, tmp_path: Path) -> None:
    run, disk, log = network.path / "run", tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(disk),
        "STEPS": str(STEPS),
        "TRAINCOPE_AGENT": "on",
        "TRAINCOPE_AGENT_INTERVAL": "0.5",
        "TRAINCOPE_SHIP_INTERVAL": "1",
        "TRAINCOPE_SHIP_WAIT": "120",
    }
    words = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(RANKS), "--standalone"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*words, "-m", "tests.live.peers.training", str(run), "-1", "/nowhere"],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until(lambda: any(disk.glob("traincope-*/records-*/attempt-000/rank-*/main-*")), "records on the node")
    (manifest,) = disk.glob("traincope-*/records-*/run.json")
    until(lambda: any(run.glob("attempt-000/shipped-*.json")), "the first round of shipping")
    network.stall()
    try:
        before = num_steps(manifest.parent)
        assert before < STEPS - 100, "the machine was too slow to stall the server in time"
        until(lambda: num_steps(manifest.parent) >= before + 100, "steps while the server stalls")
        assert process.poll() is None
    finally:
        network.answer()
    assert process.wait() == 0, log.read_text()
    until(lambda: not agents_of(run), "the agent's end")
    assert num_steps(run) >= STEPS - 1
    assert read_run(run).problems == ()
    assert not list(disk.glob("traincope-*/records-*/attempt-*"))
