"""One process with known times: what is measured is what was done."""

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

import traincope
from traincope.analysis import Analysis
from traincope.events import Phase
from traincope.store import read_run

DATA_SECONDS, FORWARD_SECONDS = 0.03, 0.02
STEPS = 5


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


def train(directory: Path, *, told: bool, accumulation: int = 1) -> Analysis:
    model = SlowModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincope.run(directory) as run:
        for batch in torch.utils.data.DataLoader(SlowData()):
            for _ in range(accumulation):
                model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if told:
                run.step()
    return traincope.analyze(traincope.open_run(directory))


def a_step(analysis: Analysis, term: str) -> float:
    """Mean seconds of a term in the counted steps."""
    return (analysis.ledger.total(term) or 0) / analysis.ledger.rank_steps / 1e9


@pytest.mark.timed
@pytest.mark.parametrize("told", [True, False], ids=["run.step()", "guessed"])
def test_data_wait_and_forward_are_their_own_times(tmp_path: Path, told: bool) -> None:
    analysis = train(tmp_path / "run", told=told)
    (rank,) = analysis.ledger.ranks
    assert rank.numbers.tolist() == list(range(STEPS))
    assert DATA_SECONDS <= a_step(analysis, "data_wait") < 2 * DATA_SECONDS
    assert FORWARD_SECONDS <= a_step(analysis, "forward") < 2 * FORWARD_SECONDS
    assert analysis.verdict[0].kind == "data_bound"


class TimedData(torch.utils.data.Dataset[Tensor]):
    """Each item is ready at the moment that it says, on the clock that all processes of a host share."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(DATA_SECONDS)
        return torch.tensor(time.monotonic_ns())


@pytest.mark.parametrize("workers", [1, 2])
def test_waiting_for_a_worker_lasts_from_when_it_is_asked_until_its_item_is_there(tmp_path: Path, workers: int) -> None:
    """Asked and answered are read outside of ours, around the same `next`."""
    around, ready = [], []
    with traincope.run(tmp_path / "run", throttle=None) as run:
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


@pytest.mark.timed
def test_gradient_accumulation_is_one_guessed_step(tmp_path: Path) -> None:
    analysis = train(tmp_path / "run", told=False, accumulation=3)
    (rank,) = analysis.ledger.ranks
    assert rank.numbers.tolist() == list(range(STEPS))
    assert 3 * FORWARD_SECONDS <= a_step(analysis, "forward") < 6 * FORWARD_SECONDS
