"""Batches fed again or skipped after a restart, as the agent finds them while the attempt runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traincope
from tests.live.node.test_agent import options
from tests.live.sample_table import SampleTable
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.live.node import reducing
from traincope.live.node.agent import Agent
from traincope.live.node.reducing import DATA_FAULTS, DATA_STEPS
from traincope.live.serve.exporting import Exporting
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.record.session.identity import this_host

DATA = torch.arange(400, dtype=torch.float32).view(-1, 4)
AGAIN = (FaultKind.DATA_FED_AGAIN, "attempt 1 continued after step 4 and was fed 2 batches again: steps 3, 4")
SKIPPED = (FaultKind.DATA_SKIPPED, "attempt 1 continued after step 4 and skipped 1 batch: step 5")


def steps(run: Path, batches: Sequence[int], *, resumed: int | None = None) -> Iterator[int]:
    """Train one step per number of a batch, and yield the number of steps after each."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with traincope.run(run, agent=False, budget=None) as recorded:
        if resumed is not None:
            traincope.event("resumed", step=resumed)
        loader = DataLoader(TensorDataset(DATA), batch_sampler=[[number] for number in batches])
        for done, (inputs,) in enumerate(loader, start=1):
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorded.step()
            yield done


def found(window: Window) -> list[tuple[FaultKind, str]]:
    return [(fault.kind, fault.what) for fault in data_faults(window.faults)]


def data_faults(faults: Sequence[Fault]) -> list[Fault]:
    return [fault for fault in faults if fault.kind in DATA_FAULTS]


@pytest.mark.parametrize(
    ("batches", "expected"), [(range(4, 12), []), (range(2, 10), [AGAIN]), (range(5, 13), [SKIPPED])]
)
def test_the_order_of_the_data_is_compared_once_while_the_attempt_runs(
    tmp_path: Path, batches: Sequence[int], expected: list[tuple[FaultKind, str]]
) -> None:
    """The attempt before trained on batches 0 to 5, and the state has had four."""
    list(steps(tmp_path, range(6)))
    agent, seen = Agent(options(tmp_path, attempt=1)), []
    exporting = Exporting(job="job", host=this_host().name, environment={"TRAINCOPE_METRICS": "off"})
    for done in steps(tmp_path, batches, resumed=4):
        window = agent.look()
        exporting.observe(window)
        seen += found(window)
        assert not window.last
        assert not seen or done >= DATA_STEPS
        if done == 7:
            assert seen == expected
    window = agent.look()
    assert window.last
    assert seen + found(window) == expected
    counted = SampleTable(exporting.samples()).of(catalogue.FAULTS)
    assert {labels: value for labels, value in counted.items() if "data" in labels[-1]} == {
        ("0", kind.value): 1 for kind, _ in expected
    }


def test_agents_that_take_over_count_it_once(tmp_path: Path) -> None:
    """The first agent ends before it can compare, the second finds the fault, and the third counts it again."""
    list(steps(tmp_path, range(6)))
    training = steps(tmp_path, range(2, 12), resumed=4)
    counted = []
    for num_steps in (2, 4, 1):
        for _ in range(num_steps):
            next(training)
        window = Agent(options(tmp_path, attempt=1)).look()
        assert window.rows
        counted.append([[fault.what for fault in data_faults(faults)] for faults in (window.earlier, window.faults)])
    assert counted == [[[], []], [[], [AGAIN[1]]], [[AGAIN[1]], []]]
    assert list(training)


def test_records_that_are_too_large_are_left_to_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reducing, "MAX_DATA_BYTES", 1_000)
    for attempt in range(2):
        list(steps(tmp_path, range(6), resumed=4 * attempt))
    assert found(Agent(options(tmp_path, attempt=1)).look()) == []
    assert "the report compares it" in caplog.text
