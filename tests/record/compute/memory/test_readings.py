"""The file from which the memory of a process is read."""

import os
import warnings
from pathlib import Path

import torch

import traincope


def test_reading_memory_leaves_no_file_open(tmp_path: Path) -> None:
    """A test that interrupts the recorder at any instant may have left one open before."""
    before = _open_files()
    with traincope.run(tmp_path / "run") as run:
        torch.nn.Linear(4, 4)(torch.ones(1, 4))
        run.step()
        assert _open_files() == before
    assert "resident" in traincope.open_run(tmp_path / "run").ranks[0].names


def _open_files() -> list[str]:
    """Descriptors of files of memory counts."""
    return [fd for fd in os.listdir("/proc/self/fd") if _target(fd).endswith("statm")]


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # the descriptor of the listing itself
        return ""


class Foreign(torch.Tensor):
    """A tensor whose parts cannot be read."""

    def __tensor_flatten__(self) -> None:
        raise RuntimeError("no parts")


def test_a_tensor_that_cannot_be_counted_costs_the_count_and_nothing_else(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    model.register_parameter("odd", torch.nn.Parameter(torch.ones(4).as_subclass(Foreign)))
    with traincope.run(tmp_path / "run", budget=None, agent=False) as run:
        for _ in range(40):
            model(torch.ones(1, 4)).sum().backward()
            run.step()
    timeline = traincope.open_run(tmp_path / "run")
    assert {"resident", "parameters"} & set(timeline.ranks[0].names) == {"resident", "parameters"}
    analysis = traincope.analyze(timeline)
    assert {use.measure for use in analysis.memory} == {"resident", "peak resident"}
    assert (analysis.memory_splits, len(timeline.ranks[0].steps)) == ((), 40)
    assert all(rank.total("forward") for rank in analysis.ledger.ranks)


def test_tensors_in_place_of_parameters_are_not_asked_for_a_gradient(tmp_path: Path) -> None:
    """Meta-learning puts the results of an update there. torch warns about their `grad`."""
    learner, fast = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as given, traincope.run(tmp_path / "run"):
        warnings.simplefilter("always")
        for _ in range(3):
            for name, parameter in learner.named_parameters():
                fast._parameters[name] = parameter * 1.0  # type: ignore[assignment]
            fast(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [str(warning.message) for warning in given] == []
