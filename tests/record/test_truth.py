"""One process with known times: what is measured is what was done."""

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

import traincope
from traincope.analysis import Analysis

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


@pytest.mark.parametrize("told", [True, False], ids=["run.step()", "guessed"])
def test_data_wait_and_forward_are_their_own_times(tmp_path: Path, told: bool) -> None:
    analysis = train(tmp_path / "run", told=told)
    (rank,) = analysis.ledger.ranks
    assert rank.numbers.tolist() == list(range(STEPS))
    assert DATA_SECONDS <= a_step(analysis, "data_wait") < 2 * DATA_SECONDS
    assert FORWARD_SECONDS <= a_step(analysis, "forward") < 2 * FORWARD_SECONDS
    assert analysis.verdict[0].kind == "data_bound"


def test_gradient_accumulation_is_one_guessed_step(tmp_path: Path) -> None:
    analysis = train(tmp_path / "run", told=False, accumulation=3)
    (rank,) = analysis.ledger.ranks
    assert rank.numbers.tolist() == list(range(STEPS))
    assert 3 * FORWARD_SECONDS <= a_step(analysis, "forward") < 6 * FORWARD_SECONDS
