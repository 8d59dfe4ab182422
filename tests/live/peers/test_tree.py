"""Six agents meet over loopback, and each learns the transfers of collectives that all six hosts share."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.live.peers.test_comparing import RUN, copy
from tests.live.peers.test_peers import settings
from tests.live.processes import until
from tests.live.tree.test_reduction import by_key, on_one_clock
from tests.live.tree.trainings import STEP_NS, job
from tests.timeline.build import run
from traincope.live.peers import peers as meeting
from traincope.live.peers.network.members import read_notes
from traincope.live.peers.peers import Peers
from traincope.live.window import RankState, RankStatus, Window
from traincope.store import RankRecords
from traincope.store.job.manifests import read_rank_info, read_run_info
from traincope.timeline import build_timeline, match_instances

pytestmark = pytest.mark.sweep
STEPS = 6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "INTERVAL_SECONDS", 0.2)
    monkeypatch.setattr(meeting, "MEETING_SECONDS", 0.5)
    monkeypatch.setattr(meeting, "AVOIDED_SECONDS", 1.0)
    monkeypatch.setattr(meeting, "END_SECONDS", 0.5)


@contextmanager
def agent(path: Path, rank: RankRecords, *known: int) -> Iterator[tuple[Peers, int]]:
    """The peers of the rank's host, and the port at which they listen."""
    directory = path / f"attempt-000/rank-{rank.rank:05d}"
    (path / "attempt-000").mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({**RUN, "world_size": 6}))
    copy(rank, host=rank.info.host, until_ns=STEPS * STEP_NS).write(directory)
    status = RankStatus(
        rank=rank.rank, info=read_rank_info(directory), state=RankState.ALIVE, last_record_ns=0,
        last_record_wall_ns=0, num_records=0, num_dropped=0,
    )  # fmt: skip
    window = Window(
        run=path, attempt=0, info=read_run_info(path), at_ns=0, since_ns=0, until_ns=0, ranks=(status,), rows=(),
        warm_up=None, analysis=None, faults=(), earlier=(), last=False,
    )  # fmt: skip
    peers = Peers(settings(*known), host=rank.info.host)
    peers.observe(window)
    try:
        until(lambda: bool(list(read_notes(path / "attempt-000"))), "the note")
        yield peers, next(iter(read_notes(path / "attempt-000"))).port
    finally:
        peers.close()


def started(stack: ExitStack, tmp_path: Path, ranks: list[RankRecords]) -> list[Peers]:
    """Agents of all hosts. The first is the root."""
    first, port = stack.enter_context(agent(tmp_path / "0", ranks[0]))
    others = [stack.enter_context(agent(tmp_path / str(rank.rank), rank, port))[0] for rank in ranks[1:]]
    return [first, *others]


def test_six_agents_learn_the_transfers_of_all_records(tmp_path: Path) -> None:
    ranks = [rank for each in job(6, 1, steps=STEPS, rng=random.Random(1), stride=2).values() for rank in each]
    truth = on_one_clock(ranks)
    known = by_key(truth)
    with ExitStack() as stack:
        agents = started(stack, tmp_path, ranks)
        until(
            lambda: all((each := peers.elsewhere()) is not None and len(each) == 2 * STEPS for peers in agents),
            "all results at all agents",
        )
        found = [peers.elsewhere() for peers in agents]
    for rank, elsewhere in zip(ranks, found, strict=True):
        instances = match_instances(replace(build_timeline(run(rank)), elsewhere=elsewhere))
        numbers = [known[key] for key in by_key(instances)]
        exact = ~truth.by_clock[numbers]
        assert instances.splits.all()
        assert exact.any()
        assert np.array_equal(instances.transfer_ns[exact], truth.transfer_ns[numbers][exact])


def test_four_agents_need_no_tree(tmp_path: Path) -> None:
    ranks = [rank for each in job(4, 1, steps=STEPS, rng=random.Random(2), stride=1).values() for rank in each]
    with ExitStack() as stack:
        agents = started(stack, tmp_path, ranks)
        until(lambda: all(len(peers.copied_ranks()) == 4 for peers in agents), "copies of all hosts")
        assert [peers.elsewhere() for peers in agents] == [None] * 4
