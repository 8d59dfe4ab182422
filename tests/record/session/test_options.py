"""Options of a run: valid ones take effect; an invalid one is reported once, and the run continues."""

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
from traincope.record.compute.modules import find_at
from traincope.record.session.options import Options, resolved_axes, resolved_budget, resolved_level
from traincope.store import read_run

Pairs = list[tuple[str, str]]


class Model(nn.Module):
    """Modules at three depths, the leaf an activation without parameters."""

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
def test_modules_at_a_depth_include_leaves_above_it(depth: int, names: list[str]) -> None:
    assert [name for name, _ in find_at(Model(), depth=depth)] == names


@pytest.mark.parametrize(
    ("depth", "spans"),
    [
        (1, ["embed (Linear)", "layers (Sequential)"]),
        (None, ["layers.0 (Sequential)", "layers.1 (Sequential)"]),
    ],
)
def test_modules_at_the_given_depth_get_spans(tmp_path: Path, depth: int | None, spans: list[str]) -> None:
    with traincope.run(tmp_path / "run", level=2, module_depth=depth, budget=None):
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
def test_a_given_axis_has_precedence_over_mesh_and_framework(tmp_path: Path) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("first",))
    meshed = mesh.get_group("first")
    described = [dist.new_group([0], group_desc=f"{name}_PARALLEL_GROUP") for name in ("TENSOR_MODEL", "DATA")]
    given = {meshed.group_name: "fsdp", "TENSOR_MODEL_PARALLEL_GROUP": "experts"}
    with traincope.run(tmp_path / "run", axes=given):
        for group in (meshed, *described):
            dist.all_reduce(torch.ones(1), group=group)
    assert axes_of(tmp_path / "run") == [("fsdp", "told"), ("experts", "told"), ("dp", "framework")]
    assert read_run(tmp_path / "run").info.mesh == {"first": 1}


def test_the_callers_run_id_has_precedence_and_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINCOPE_RUN_ID", "by-variable")
    for given in (None, "by-caller"):
        with traincope.run(run_id=given):
            pass
    ids = {path.name: read_run(path).info.id for path in (tmp_path / "traincope_runs").iterdir()}
    assert ids == {"by-variable": "by-variable", "by-caller": "by-caller"}


def test_runs_with_one_id_are_attempts_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with traincope.run(run_id="nightly.7"):
            pass
    run = tmp_path / "traincope_runs" / "nightly.7"
    assert sorted(path.name for path in run.glob("attempt-*")) == ["attempt-000", "attempt-001"]


@pytest.mark.parametrize(
    ("given", "expected_message"),
    [
        ({"module_depth": 0}, "module_depth must be an integer from 1, not 0: the model's blocks get spans"),
        ({"module_depth": "2"}, "module_depth must be an integer from 1, not '2': the model's blocks get spans"),
        ({"module_depth": True}, "module_depth must be an integer from 1, not True: the model's blocks get spans"),
        ({"axes": ["tp"]}, "axes must map the name or description of a process group to its axis: ignored"),
        (
            {"axes": {"a": "tp", "b": 1, 2: "pp", "c": ""}},
            "axes of process groups must be plain words: 3 of 4 are ignored",
        ),
        ({"disk_budget": "1 GB"}, "disk_budget must be a number of bytes, not '1 GB': using 268435456"),
        ({"disk_budget": float("inf")}, "disk_budget must be a number of bytes, not inf: using 268435456"),
        ({"flops": "many"}, "flops must be a positive number, not 'many': ignored"),
        ({"flops": float("nan")}, "flops must be a positive number, not nan: ignored"),
        ({"budget": "1 %"}, "budget must be a share of the step, not '1 %': using 0.005"),
        ({"budget": True}, "budget must be a share of the step, not True: using 0.005"),
        (
            {"run_id": "../up"},
            "'../up' is not a run id (at most 128 letters, digits and _.+:@=-, no sign first): ignored",
        ),
        ({"run_id": 7}, "7 is not a run id (at most 128 letters, digits and _.+:@=-, no sign first): ignored"),
        ({"run_id": ""}, "'' is not a run id (at most 128 letters, digits and _.+:@=-, no sign first): ignored"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line_and_the_run_continues(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    expected_message: str,
) -> None:
    monkeypatch.delenv("TRAINCOPE_BUDGET")
    options = {"level": 2, "budget": None} | given
    with caplog.at_level(logging.WARNING), traincope.run(tmp_path / "run", **options):
        Model()(torch.ones(2, 4)).sum().backward()
    (message,) = caplog.messages
    assert message.startswith(expected_message)
    assert recorded_spans(tmp_path / "run", Phase.FORWARD) == ["layers.0 (Sequential)", "layers.1 (Sequential)"]


@pytest.mark.parametrize("level", ["2", None, -1, 1.5, True])
def test_an_invalid_level_becomes_the_default(level: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert resolved_level(Options(level=level)) == 1
    assert caplog.messages == [f"level must be an integer from 0, not {level!r}: using 1"]


def test_valid_axes_are_kept_next_to_invalid_ones() -> None:
    assert resolved_axes(Options(axes={"a": "tp", "b": 1})) == {"a": "tp"}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("variable", "given", "expected"),
    [("none", 0.01, None), ("0.02", None, 0.02), ("", 0.01, 0.01), ("much", 0.01, 0.01), ("-1", None, None)],
)
def test_the_variable_of_the_budget_has_precedence(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: float | None, expected: float | None
) -> None:
    monkeypatch.setenv("TRAINCOPE_BUDGET", variable)
    assert resolved_budget(Options(budget=given)) == expected
