"""What a run is told is so; what it cannot be told is said once, and the run goes on without."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import traincope
from traincope.events import Kind, Phase
from traincope.record.modules import find_at
from traincope.record.options import Options, told_axes, told_level
from traincope.store import read_run

Pairs = list[tuple[str, str]]


class Model(nn.Module):
    """Modules at three depths; of an activation there is nothing to see."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(self.embed(x))
        return result


@pytest.mark.parametrize(
    ("depth", "names"),
    [
        (1, ["embed", "layers"]),
        (2, ["embed", "layers.0", "layers.1"]),
        (3, ["embed", "layers.0.0", "layers.1.0"]),
        (9, ["embed", "layers.0.0", "layers.1.0"]),
    ],
)
def test_modules_of_a_depth_are_those_that_lie_there_or_end_before(depth: int, names: list[str]) -> None:
    assert [name for name, _ in find_at(Model(), depth=depth)] == names


@pytest.mark.parametrize(
    ("depth", "spans"),
    [
        (1, ["embed (Linear)", "layers (Sequential)"]),
        (None, ["layers.0 (Sequential)", "layers.1 (Sequential)"]),
    ],
)
def test_the_modules_of_the_depth_that_was_told_get_spans(tmp_path: Path, depth: int | None, spans: list[str]) -> None:
    with traincope.run(tmp_path / "run", level=2, module_depth=depth, throttle=None):
        Model()(torch.ones(2, 4)).sum().backward()
    assert recorded_spans(tmp_path / "run", Phase.FORWARD) == spans
    assert recorded_spans(tmp_path / "run", Phase.BACKWARD) == spans[::-1]


def recorded_spans(path: Path, phase: Phase) -> list[str]:
    rank = read_run(path).ranks[0]
    main = rank.thread("main")
    return [rank.name(int(span["name"])) for span in main[(main["kind"] == Kind.SPAN) & (main["phase"] == phase)]]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def axes_of(path: Path) -> Pairs:
    return [(group.axis, group.rule) for group in read_run(path).ranks[0].groups]


@pytest.mark.usefixtures("alone")
def test_an_axis_that_is_told_wins_over_the_mesh_and_over_the_names_of_frameworks(tmp_path: Path) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("first",))
    meshed = mesh.get_group("first")
    described = [dist.new_group([0], group_desc=f"{name}_PARALLEL_GROUP") for name in ("TENSOR_MODEL", "DATA")]
    told = {meshed.group_name: "fsdp", "TENSOR_MODEL_PARALLEL_GROUP": "experts"}
    with traincope.run(tmp_path / "run", axes=told):
        for group in (meshed, *described):
            dist.all_reduce(torch.ones(1), group=group)
    assert axes_of(tmp_path / "run") == [("fsdp", "told"), ("experts", "told"), ("dp", "framework")]
    assert read_run(tmp_path / "run").info.mesh == {"first": 1}


def test_the_run_id_by_the_caller_wins_over_the_variable_and_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINCOPE_RUN_ID", "by-variable")
    for told in (None, "by-caller"):
        with traincope.run(run_id=told):
            pass
    ids = {path.name: read_run(path).info.id for path in (tmp_path / "traincope_runs").iterdir()}
    assert ids == {"by-variable": "by-variable", "by-caller": "by-caller"}


def test_runs_of_one_id_are_attempts_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with traincope.run(run_id="nightly.7"):
            pass
    run = tmp_path / "traincope_runs" / "nightly.7"
    assert sorted(path.name for path in run.glob("attempt-*")) == ["attempt-000", "attempt-001"]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"module_depth": 0}, "module_depth is 0, no whole number from 1 on: the model's blocks get spans"),
        ({"module_depth": "2"}, "module_depth is '2', no whole number from 1 on: the model's blocks get spans"),
        ({"module_depth": True}, "module_depth is True, no whole number from 1 on: the model's blocks get spans"),
        ({"axes": ["tp"]}, "axes is no mapping of a process group's name or description to its axis: it is left out"),
        ({"axes": {"a": "tp", "b": 1, 2: "pp", "c": ""}}, "axes of process groups need words, which 3 of 4 are not"),
        ({"disk_budget": "1 GB"}, "disk_budget is '1 GB', no number of bytes: it is 268435456"),
        ({"disk_budget": float("inf")}, "disk_budget is inf, no number of bytes: it is 268435456"),
        ({"flops": "many"}, "flops is 'many', no number of operations: it is left out"),
        ({"flops": float("nan")}, "flops is nan, no number of operations: it is left out"),
        ({"throttle": "1 %"}, "throttle is '1 %', no share of the step: it is 0.005"),
        ({"throttle": True}, "throttle is True, no share of the step: it is 0.005"),
        ({"run_id": "../up"}, "'../up' is no run id (up to 128 letters, digits and _.+:@=-, no sign first): it is "),
        ({"run_id": 7}, "7 is no run id (up to 128 letters, digits and _.+:@=-, no sign first): it is left out"),
        ({"run_id": ""}, "'' is no run id (up to 128 letters, digits and _.+:@=-, no sign first): it is left out"),
    ],
)
def test_what_cannot_be_told_is_said_in_one_line_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, told: dict[str, Any], said: str
) -> None:
    options = {"level": 2, "throttle": None} | told
    with caplog.at_level(logging.WARNING), traincope.run(tmp_path / "run", **options):
        Model()(torch.ones(2, 4)).sum().backward()
    (message,) = caplog.messages
    assert message.startswith(said)
    assert recorded_spans(tmp_path / "run", Phase.FORWARD) == ["layers.0 (Sequential)", "layers.1 (Sequential)"]


@pytest.mark.parametrize("level", ["2", None, -1, 1.5, True])
def test_a_level_that_is_none_is_the_default(level: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert told_level(Options(level=level)) == 1
    assert caplog.messages == [f"level is {level!r}, no whole number from 0 on: it is 1"]


def test_axes_that_are_words_are_kept_beside_those_that_are_not() -> None:
    assert told_axes(Options(axes={"a": "tp", "b": 1})) == {"a": "tp"}  # type: ignore[dict-item]
