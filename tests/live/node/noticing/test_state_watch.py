"""State that goes bad in a running job, as the agents of one host and of two see it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import traincope
from tests.live.node.test_agent import options
from tests.live.sample_table import SampleTable
from tests.record.state.test_checks import flip
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.live.node.agent import Agent
from traincope.live.node.noticing import state_watch
from traincope.live.node.noticing.state_watch import StateWatch
from traincope.live.serve.exporting import Exporting
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.record.session.identity import this_host
from traincope.record.state.check_file import CheckFile
from traincope.store.job.state_checks import HeldCheck, Layout, StateCheck, StateCheckTail, StateTensor
from traincope.store.layout import rank_directory

FLIPPED = "bit 11 of an element of weight (float32) flipped on rank 0"


def steps(run: Path, *, bad: int) -> Iterator[int]:
    """Train; a bit flips after step `bad`. Yields after each step."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with traincope.run(run, agent=False, budget=None, corruption_check_steps=2) as recorded:
        for step in range(10):
            model(torch.ones(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorded.step()
            if step == bad:
                flip(model.weight, byte=5, bit=3)
            yield step


def bad_state(window: Window) -> list[tuple[int | None, tuple[int, ...], str]]:
    return [(fault.step, fault.ranks, fault.what) for fault in window.faults if fault.kind in KINDS]


KINDS = (FaultKind.CORRUPTED_STATE, FaultKind.REPLICAS_DIFFER)


def test_a_flipped_bit_is_one_fault_while_the_job_runs(tmp_path: Path) -> None:
    agent, seen = Agent(options(tmp_path)), {}
    exporting = Exporting(job="job", host=this_host().name, environment={"TRAINCOPE_METRICS": "off"})
    for step in steps(tmp_path, bad=4):
        window = agent.look()
        exporting.observe(window)
        seen[step] = bad_state(window)
    window = agent.look()
    assert window.last
    assert [*seen.values(), bad_state(window)].count([(4, (0,), FLIPPED)]) == 1
    assert sum(map(len, seen.values())) == 1
    assert not any(seen[step] for step in range(5))
    counted = SampleTable(exporting.samples()).of(catalogue.FAULTS)
    assert counted["0", "corrupted_state"] == 1


def test_a_new_agent_counts_the_fault_of_the_one_before_as_earlier(tmp_path: Path) -> None:
    training = steps(tmp_path, bad=2)
    for _ in range(8):
        next(training)
    assert bad_state(Agent(options(tmp_path)).look()) == [(2, (0,), FLIPPED)]
    next(training)
    window = Agent(options(tmp_path)).look()
    assert [fault.what for fault in window.earlier if fault.kind in KINDS] == [FLIPPED]
    assert bad_state(window) == []
    assert list(training)


class Ranks:
    """Replicas of one tensor, from rank 0 on, and their files."""

    def __init__(self, run: Path, *, number: int = 3) -> None:
        self._files = {}
        tensor = StateTensor(parameter="w", state=None, dtype="float32", num_bytes=8, replicas=tuple(range(number)))
        self._layout = Layout(optimizer=0, tensors=(tensor,))
        for rank in range(number):
            directory = rank_directory(run, attempt=0, rank=rank)
            directory.mkdir(parents=True)
            self._files[rank] = CheckFile(lambda directory=directory: directory)

    def write(self, step: int, sums: Sequence[int | None]) -> None:
        for rank, value in enumerate(sums):
            if value is not None:
                check = np.array([value], dtype=np.int64)
                self._files[rank].write(
                    StateCheck(step=step, at_ns=step + rank, cost_ns=1, layout=self._layout, sums=check)
                )

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def looked(watch: StateWatch, own: Sequence[int], *, last: bool = False) -> list[tuple[int | None, tuple[int, ...]]]:
    """Faults by an agent that knows the clocks of its own ranks only."""
    faults: tuple[Fault, ...] = watch.look(own, to_axis=lambda rank, ns: ns if rank in own else None, last=last)
    return [(fault.step, fault.ranks) for fault in faults]


def test_the_vote_waits_for_all_replicas_and_the_host_of_the_bad_rank_reports_it(tmp_path: Path) -> None:
    ranks, here, there = Ranks(tmp_path), StateWatch(tmp_path, attempt=0), StateWatch(tmp_path, attempt=0)
    ranks.write(0, (5, 5, 5))
    ranks.write(10, (5, 6, None))
    assert (looked(here, [0, 1]), looked(there, [2])) == ([], [])
    ranks.write(10, (None, None, 5))
    assert (looked(here, [0, 1]), looked(there, [2])) == ([(10, (1,))], [])
    ranks.write(20, (5, 6, 7))
    assert (looked(here, [0, 1]), looked(there, [2])) == ([(10, (1,)), (20, (0, 1, 2))], [])
    ranks.close()


def test_of_many_replicas_an_agent_reads_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 30 differs: its own agent names it, also before all others have written. Others do not open its file."""
    monkeypatch.setattr(state_watch, "MAX_PARTNERS", 3)
    opened: set[int] = set()

    class Tail(StateCheckTail):
        def read(self) -> Iterator[StateCheck | HeldCheck]:
            opened.add(int(self.directory.name.rpartition("-")[2]))
            return super().read()

    monkeypatch.setattr(state_watch, "StateCheckTail", Tail)
    ranks = Ranks(tmp_path, number=40)
    ranks.write(0, [5] * 40)
    ranks.write(10, [6 if rank == 30 else 5 for rank in range(40)])
    ranks.close()
    assert looked(StateWatch(tmp_path, attempt=0), [30]) == [(10, (30,))]
    assert opened == {30, 31, 32, 33}
    opened.clear()
    assert looked(StateWatch(tmp_path, attempt=0), [38, 39]) == []
    assert opened == {38, 39, 0, 1, 2}


def test_the_last_look_votes_without_a_rank_that_wrote_nothing_more(tmp_path: Path) -> None:
    ranks, watch = Ranks(tmp_path), StateWatch(tmp_path, attempt=0)
    ranks.write(0, (5, 5, 5))
    ranks.write(10, (5, 6, None))
    assert looked(watch, [0, 1, 2]) == []
    assert looked(watch, [0, 1, 2], last=True) == [(10, (0, 1))]
    ranks.close()
