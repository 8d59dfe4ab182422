"""`traincope.phase` and the contexts of trainers: records, FLOPs, evaluation, exceptions, and exact restoration."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import traincope
from traincope.analysis import analyze
from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.events import OPEN, Kind, Phase
from traincope.record.trainers import hugging_face, trl
from traincope.store import read_run
from traincope.timeline import open_run


def parts_of(path: Path, *, thread: str = "main") -> NDArray[np.void]:
    records = read_run(path).ranks[0].thread(thread)
    found: NDArray[np.void] = records[(records["kind"] == Kind.PHASE) & (records["phase"] >= Phase.GENERATE)]
    return found


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(8, 8)


def test_known_names_are_terms_and_others_keep_their_name(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        for name in ("reward", "weight_sync", "tools"):
            with traincope.phase(name):
                pass
        run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    found = [(Phase(row["phase"]), rank.name(int(row["name"]))) for row in parts_of(tmp_path / "run")]
    assert found == [(Phase.REWARD, "reward"), (Phase.WEIGHT_SYNC, "weight_sync"), (Phase.NAMED, "tools")]


def test_flops_in_a_part_are_not_the_models(tmp_path: Path, model: torch.nn.Module) -> None:
    """Forward and backward multiply 3 x 2 x 4 x 8 x 8 FLOPs; the input takes no gradient, so 2 of 3."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincope.run(tmp_path / "run"):
        for _ in range(4):
            with traincope.phase("generate"):
                model(torch.ones(4, 8))
                with torch.no_grad():
                    model(torch.ones(4, 8))
            train(model, optimizer)
    flops = counted_flops(open_run(tmp_path / "run").ranks[0])
    assert flops is not None
    assert sum(flops.executed().values()) == 2 * 2 * 4 * 8 * 8


def test_a_part_begins_its_step_and_a_rollout_in_evaluation_mode_belongs_to_it(
    tmp_path: Path, model: torch.nn.Module
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with traincope.run(tmp_path / "run"):
        for _ in range(5):
            with traincope.phase("generate"), torch.no_grad():
                model.eval()
                model(torch.ones(4, 8))
                model.train()
            train(model, optimizer)
    analysis = analyze(open_run(tmp_path / "run"))
    ledger = analysis.ledger.ranks[0]
    assert (len(ledger.numbers), ledger.evaluation_ns) == (5, 0)
    generated = ledger.terms["generate"]
    assert generated is not None
    assert generated[1:].all()


def test_an_exception_ends_the_part_and_passes_on(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        with pytest.raises(ZeroDivisionError), traincope.phase("reward"):
            raise ZeroDivisionError
        run.step()
    assert [row["end_ns"] == OPEN for row in parts_of(tmp_path / "run")] == [False]


def test_a_part_of_another_thread_is_on_its_own_lane(tmp_path: Path) -> None:
    def score() -> None:
        with traincope.phase("reward"):
            pass

    with traincope.run(tmp_path / "run") as run:
        thread = threading.Thread(target=score)
        thread.start()
        thread.join()
        run.step()
    assert not len(parts_of(tmp_path / "run"))
    threads = {name for rank in read_run(tmp_path / "run").ranks for name in rank.threads if name != "main"}
    assert sum(len(parts_of(tmp_path / "run", thread=name)) for name in threads) == 1


def test_a_part_that_is_entered_inside_itself_ends_as_often(tmp_path: Path) -> None:
    reward = traincope.phase("reward")
    with traincope.run(tmp_path / "run") as run:
        with reward, reward:
            pass
        run.step()
    assert [row["end_ns"] == OPEN for row in parts_of(tmp_path / "run")] == [False, False]


def test_a_part_outside_a_run_does_nothing() -> None:
    with traincope.phase("reward"):
        pass


def test_a_part_breaks_no_graph(tmp_path: Path, model: torch.nn.Module) -> None:
    def step(batch: torch.Tensor) -> torch.Tensor:
        with traincope.phase("mine"):
            return torch.mul(model(batch), 2)

    with traincope.run(tmp_path / "run"):
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(4, 8)), step(torch.ones(4, 8)))


class Context:
    """As TRL's, which names what it measures with the class of its trainer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *raised: object) -> None:
        """Let exceptions pass."""


class Mixin:
    training = True

    def generate(self, *, tokens: int) -> int:
        """Generate."""
        return tokens


@pytest.fixture
def packages() -> Iterator[None]:
    """Stand-ins with the names of the packages; `tests/integrations/test_trl.py` runs the real ones."""
    for name, place, kind in ((trl.MODULE, trl.CLASS, Context), (hugging_face.MODULE, hugging_face.CLASS, Mixin)):
        module = ModuleType(name)
        setattr(module, place, kind)
        sys.modules[name] = module
    yield
    for name in (trl.MODULE, hugging_face.MODULE):
        del sys.modules[name]


class Trainer:
    def __init__(self, model: Any) -> None:
        self.model = model

    def measure(self, name: str) -> None:
        with Context(f"Trainer.{name}"):
            pass


@pytest.mark.usefixtures("packages")
def test_contexts_of_a_trainer_are_parts_while_it_trains(tmp_path: Path, model: torch.nn.Module) -> None:
    before = vars(Context)["__enter__"], vars(Context)["__exit__"], vars(Mixin)["generate"]
    trainer = Trainer(model)
    with traincope.run(tmp_path / "run") as run:
        for name in ("transformers.generate", "_calculate_rewards", "compute_loss", "my_reward"):
            trainer.measure(name)
        trainer.measure("_get_per_token_logps_and_entropies")
        with torch.no_grad():
            trainer.measure("_get_per_token_logps_and_entropies")
        model.eval()
        trainer.measure("_calculate_rewards")
        run.step()
    phases = [Phase(row["phase"]) for row in parts_of(tmp_path / "run")]
    assert phases == [Phase.GENERATE, Phase.REWARD, Phase.LOGPROB]
    assert (vars(Context)["__enter__"], vars(Context)["__exit__"], vars(Mixin)["generate"]) == before


@pytest.mark.usefixtures("packages")
def test_a_generation_of_a_model_in_training_is_a_part_unless_it_is_in_one(tmp_path: Path) -> None:
    mixin = Mixin()
    with traincope.run(tmp_path / "run") as run:
        assert mixin.generate(tokens=3) == 3
        assert Mixin.generate.__doc__ == "Generate."
        with traincope.phase("reward"):
            mixin.generate(tokens=3)
        mixin.training = False
        mixin.generate(tokens=3)
        run.step()
    assert [Phase(row["phase"]) for row in parts_of(tmp_path / "run")] == [Phase.GENERATE, Phase.REWARD]
