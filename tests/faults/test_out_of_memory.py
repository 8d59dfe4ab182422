"""A rank that runs out of memory: what it asked for, where, and what its memory was used for."""

from pathlib import Path

import torch
from torch import nn

import traincope
from tests.faults.victims.victims import Victims

TOO_LARGE = 1 << 44
"""Bytes; no machine has them."""
WEIGHTS = 64 * 64 + 64
FLOAT = 4


class Demanding(nn.Module):
    """Asks for too much in the forward of its fourth call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 4:
            torch.empty(TOO_LARGE, dtype=torch.uint8)
        return self.layer(batch)  # type: ignore[no-any-return]


def train(out: str) -> None:
    model = Demanding()
    optimizer = torch.optim.AdamW(model.parameters())
    with traincope.run(out, agent=False) as run:
        for _ in range(8):
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()


def test_the_post_mortem_names_the_request_the_phase_and_the_use(victims: Victims, tmp_path: Path) -> None:
    """AdamW keeps two numbers for each weight, and a count of its steps for each of two parameters."""
    assert victims.run(train, tmp_path / "run").code == 1
    analysis = traincope.analyze(traincope.open_run(tmp_path / "run"))
    (short,) = analysis.out_of_memory
    assert (short.request_bytes, short.phase, short.step, short.by_kernel) == (TOO_LARGE, "forward", 3, False)
    assert short.split is not None
    assert (short.split.parameters_bytes, short.split.gradients_bytes) == (WEIGHTS * FLOAT, 0)
    assert short.split.optimizer_bytes == 2 * WEIGHTS * FLOAT + 2 * FLOAT
    assert sum(short.split.parts.values()) == short.split.total_bytes
    finding = analysis.verdict[0]
    assert (finding.kind, finding.ranks) == ("failed_rank", (0,))
    assert "it asked for 16.0 TiB of a memory of" in finding.evidence
    assert finding.advice.startswith("Ask for less than")
    assert [fault.kind for fault in analysis.faults if fault.is_fault] == ["out_of_memory"]
