"""Compilations of a real torch.compile are intervals in the step in which they happen, and a term of its ledger."""

from pathlib import Path
from time import sleep
from typing import Any

import torch
import torch._dynamo.callback
from torch import nn

import traincope
from traincope.events import Kind, Phase
from traincope.store import RankRecords, read_run

COMPILED_AGAIN = 4
SLOW_SECONDS = 0.05


def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
    """Compile to nothing, slowly."""
    sleep(SLOW_SECONDS)
    return graph.forward


def train(directory: Path, *, steps: int = 8) -> None:
    """One shape, and another one from step COMPILED_AGAIN on, for which torch compiles again."""
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(4, 4), backend=backend, dynamic=False)
    with traincope.run(directory, budget=None) as run:
        for number in range(steps):
            model(torch.ones(2 if number < COMPILED_AGAIN else 3, 4)).sum().backward()
            run.step()
    torch._dynamo.reset()


def compilations(rank: RankRecords) -> dict[int, int]:
    """Step -> ns."""
    main = rank.thread("main")
    chosen = main[(main["kind"] == Kind.PHASE) & (main["phase"] == Phase.COMPILE)]
    return dict(zip(chosen["step"].tolist(), (chosen["end_ns"] - chosen["start_ns"]).tolist(), strict=True))


def test_a_compilation_is_an_interval_of_its_step_and_a_term_of_its_ledger(tmp_path: Path) -> None:
    handler = torch._dynamo.callback.callback_handler
    before = [*handler.start_callbacks], [*handler.end_callbacks]
    train(tmp_path / "run")
    assert (handler.start_callbacks, handler.end_callbacks) == before
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.probes["compile"] == "on"
    found = compilations(rank)
    assert found.keys() == {0, COMPILED_AGAIN}
    assert min(found.values()) >= SLOW_SECONDS * 1e9
    ledger = traincope.analyze(traincope.open_run(tmp_path / "run")).ledger
    (own,) = ledger.ranks
    terms = own.terms["compile"]
    assert terms is not None
    assert {number: ns for number, ns in zip(own.numbers.tolist(), terms.tolist(), strict=True) if ns} == found
