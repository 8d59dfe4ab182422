"""Compilations of a real torch.compile are intervals in the step in which they happen, and a term of its ledger."""

import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
import torch._dynamo.callback
from torch import nn

import traincope
from traincope.analysis import FaultKind
from traincope.events import NO_STEP, Kind, Phase
from traincope.store import RankRecords, read_run
from traincope.timeline import evaluations

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


def evaluate_then_train(directory: Path) -> None:
    """The first call of the compiled model is in an evaluation."""
    torch._dynamo.reset()
    module = nn.Linear(4, 4)
    model = torch.compile(module, backend=backend, dynamic=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with traincope.run(directory, budget=None):
        for number in range(4):
            if number % 2 == 0:
                module.eval()
                with torch.no_grad():
                    model(torch.ones(2 + number, 4))
                module.train()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    torch._dynamo.reset()


IMPORTED_LATE = """
import sys, torch, traincope
module = torch.nn.Linear(4, 4).eval()
with traincope.run(sys.argv[1], budget=None):
    assert "torch._dynamo.callback" not in sys.modules
    model = torch.compile(module, backend=lambda graph, _: graph.forward)
    with torch.no_grad():
        model(torch.ones(2, 4))
"""


UNDER_DDP = """
import sys, torch, torch.distributed as dist, traincope
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
module = torch.nn.Linear(4, 4)
with traincope.run(sys.argv[1], budget=None):
    model = torch.compile(torch.nn.parallel.DistributedDataParallel(module), backend="aot_eager")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print([reason for reason in torch._dynamo.utils.counters["graph_break"] if "thread_time_ns" in reason])
"""


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


def test_a_compilation_in_an_evaluation_is_not_evaluation(tmp_path: Path) -> None:
    """Before the first step, and in step 1, after its update. Both evaluate a shape of their own."""
    evaluate_then_train(tmp_path / "run")
    analysis = traincope.analyze(traincope.open_run(tmp_path / "run"))
    (rank,) = analysis.timeline.ranks
    found, (own,) = compilations(read_run(tmp_path / "run").ranks[0]), analysis.ledger.ranks
    assert found.keys() == {NO_STEP, 0, 1}
    assert min(found.values()) >= SLOW_SECONDS * 1e9
    terms = own.terms["compile"]
    assert terms is not None
    assert terms.tolist() == [found[0], found[1], 0, 0]
    evaluating, main = evaluations(rank), rank.main
    forwards = main[main["phase"] == Phase.EVALUATION]
    whole = int((forwards["end_ns"] - forwards["start_ns"]).sum())
    assert int((evaluating.ends_ns - evaluating.starts_ns).sum()) == whole - found[NO_STEP] - found[1]
    marks = [fault.lasted_ns for fault in analysis.faults if fault.kind is FaultKind.EVALUATION]
    assert 0 < sum(filter(None, marks)) <= whole - found[NO_STEP] - found[1]


def test_the_first_compilation_is_seen_before_any_step(tmp_path: Path) -> None:
    """TorchDynamo is imported after the recording began. Runs in a process of its own, which has not imported it."""
    subprocess.run([sys.executable, "-c", IMPORTED_LATE, str(tmp_path / "run")], check=True)
    assert compilations(read_run(tmp_path / "run").ranks[0]).keys() == {NO_STEP}


@pytest.mark.sweep
def test_hooks_are_not_compiled(tmp_path: Path) -> None:
    """TorchDynamo skips DDP's forward, and compiles the functions that it calls. A guard reads clocks, which breaks."""
    words = [sys.executable, "-c", UNDER_DDP, str(tmp_path / "run")]
    ended = subprocess.run(words, check=True, capture_output=True, text=True)
    assert ended.stdout == "[]\n"
    assert "Dynamo does not know" not in ended.stderr
