"""One process with known times: the measured time is the real time."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor

import traincope
from traincope.analysis import Analysis
from traincope.events import Phase
from traincope.store import read_run

DATA_SECONDS, FORWARD_SECONDS = 0.03, 0.02
STEPS = 5

Result = TypeVar("Result")


class SlowData(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(DATA_SECONDS)
        return torch.ones(4)


class SlowModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(FORWARD_SECONDS)
        result: Tensor = self.linear(x)
        return result


class Watch:
    """A stopwatch around calls, outside the recorder: a recorded call cannot last longer."""

    def __init__(self) -> None:
        self.ns = [0] * STEPS
        """Measured time of each step."""

    def timed(self, step: int, call: Callable[[], Result]) -> Result:
        began_ns = time.monotonic_ns()
        result = call()
        self.ns[step] += time.monotonic_ns() - began_ns
        return result


class Trained(NamedTuple):
    """A recorded training, with the test's own measurements."""

    analysis: Analysis
    data: Watch
    forward: Watch

    def assert_term(self, term: str, watch: Watch, *, at_least_ns: float) -> None:
        """Assert that in every step the term is at least the injected sleep and at most the stopwatch's time."""
        (rank,) = self.analysis.ledger.ranks
        assert rank.numbers.tolist() == list(range(STEPS))
        recorded_ns = rank.terms[term]
        assert recorded_ns is not None
        assert all(at_least_ns <= ns <= around for ns, around in zip(recorded_ns.tolist(), watch.ns, strict=True))


def train(directory: Path, *, marked: bool, accumulation: int = 1) -> Trained:
    model, data, forward = SlowModel(), Watch(), Watch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincope.run(directory) as run:
        batches = iter(torch.utils.data.DataLoader(SlowData()))
        for step in range(STEPS):
            batch = data.timed(step, lambda: next(batches))
            for _ in range(accumulation):
                forward.timed(step, lambda batch=batch: model(batch)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if marked:
                run.step()
    return Trained(traincope.analyze(traincope.open_run(directory)), data, forward)


@pytest.mark.parametrize("marked", [True, False], ids=["run.step()", "guessed"])
def test_data_wait_and_forward_have_their_injected_times(tmp_path: Path, marked: bool) -> None:
    trained = train(tmp_path / "run", marked=marked)
    trained.assert_term("data_wait", trained.data, at_least_ns=DATA_SECONDS * 1e9)
    trained.assert_term("forward", trained.forward, at_least_ns=FORWARD_SECONDS * 1e9)
    assert "data_bound" in [finding.kind for finding in trained.analysis.verdict]


class TimedData(torch.utils.data.Dataset[Tensor]):
    """Each item is ready at a given moment, on the clock that all processes of a host share."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(DATA_SECONDS)
        return torch.tensor(time.monotonic_ns())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_data_wait_lasts_from_the_request_until_the_item_arrives(tmp_path: Path, workers: int) -> None:
    """Request and answer are timed outside the recorder, around the same `next`."""
    around, ready = [], []
    with traincope.run(tmp_path / "run", budget=None) as run:
        batches = iter(torch.utils.data.DataLoader(TimedData(), batch_size=None, num_workers=workers))
        began_ns = time.monotonic_ns()
        for _ in range(len(TimedData())):
            asked_ns = time.monotonic_ns()
            ready.append(int(next(batches)))
            around.append((asked_ns, time.monotonic_ns()))
            run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    waits = [record for record in rank.thread("main") if record["phase"] == Phase.DATA_WAIT]
    assert len(waits) == len(around)
    for wait, (asked_ns, answered_ns), ready_ns in zip(waits, around, ready, strict=True):
        assert asked_ns <= wait["start_ns"]
        assert ready_ns <= wait["end_ns"] <= answered_ns
    waited_ns = sum(int(wait["end_ns"] - wait["start_ns"]) for wait in waits)
    outside_ns = answered_ns - began_ns - waited_ns
    asleep_ns = len(waits) // workers * DATA_SECONDS * 1e9  # one item after the other, in each worker
    assert waited_ns >= asleep_ns - outside_ns


def test_gradient_accumulation_is_one_inferred_step(tmp_path: Path) -> None:
    trained = train(tmp_path / "run", marked=False, accumulation=3)
    trained.assert_term("forward", trained.forward, at_least_ns=3 * FORWARD_SECONDS * 1e9)
