"""Mesh axes of groups that are named as in Megatron and DeepSpeed. All are real gloo groups."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import traincope
from traincope.events import Kind
from traincope.store import read_run

pytestmark = pytest.mark.usefixtures("native")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def axes(path: Path) -> list[tuple[str, str]]:
    return [(group.axis, group.rule) for group in read_run(path).ranks[0].groups]


def test_megatron_describes_its_groups(tmp_path: Path) -> None:
    names = ("TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP", "EXPERT_MODEL_PARALLEL_GROUP", "SOMETHING")
    with traincope.run(tmp_path / "run"):
        for name in names:
            dist.all_reduce(torch.ones(1), group=dist.new_group([0], group_desc=name))
    by_framework = [("tp", "framework"), ("dp_cp", "framework"), ("ep", "framework")]
    assert axes(tmp_path / "run") == [*by_framework, ("SOMETHING", "none")]


def test_a_group_is_called_by_its_description_until_a_wrapper_uses_it(tmp_path: Path) -> None:
    described, plain = dist.new_group([0], group_desc="replicate"), dist.new_group([0])
    with traincope.run(tmp_path / "run"):
        dist.all_reduce(torch.ones(1), group=described)
        dist.all_reduce(torch.ones(1), group=plain)
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=described)
    assert axes(tmp_path / "run") == [("replicate", "none"), ("world", "none"), ("dp", "wrapper")]


def test_deepspeed_holds_its_groups_in_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expert, shard, data, other = (dist.new_group([0]) for _ in range(4))
    state = ModuleType("deepspeed.utils.groups")
    vars(state).update(
        _EXPERT_PARALLEL_GROUP={"ep_size_1": expert}, _ZERO_PARAM_INTRA_PARALLEL_GROUP=shard, _WORLD_GROUP=data
    )
    monkeypatch.setitem(sys.modules, "deepspeed.utils.groups", state)
    with traincope.run(tmp_path / "run"):
        for group in (expert, shard, data, other):
            dist.all_reduce(torch.ones(1), group=group)
    by_framework = [("ep", "framework"), ("fsdp", "framework"), ("dp", "framework")]
    assert axes(tmp_path / "run") == [*by_framework, ("world", "none")]


def test_an_unknown_version_of_a_framework_costs_only_the_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module makes attributes on demand, and cannot make those that it no longer has."""
    state, renamed = ModuleType("megatron.core.parallel_state"), dist.new_group([0])

    def on_demand(name: str) -> object:
        raise ImportError(f"{name} has moved")

    vars(state).update(__getattr__=on_demand, _TP_GROUP_OF_VERSION_99=renamed)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    with traincope.run(tmp_path / "run"):
        dist.all_reduce(torch.ones(1), group=renamed)
    (rank,) = read_run(tmp_path / "run").ranks
    assert axes(tmp_path / "run") == [("world", "none")]
    assert (rank.thread("main")["kind"] == Kind.COLLECTIVE).sum() == 1
    assert not [state for state in rank.info.probes.values() if "failed" in state]


def test_zero_3_uses_the_group_of_the_world(tmp_path: Path) -> None:
    """Only the module that calls shows that these are data-parallel ranks."""
    calling: dict[str, object] = {"__name__": "deepspeed.runtime.zero.stage3", "dist": dist}
    exec("def reduce(gradients): dist.all_reduce(gradients)", calling)
    with traincope.run(tmp_path / "run"):
        calling["reduce"](torch.ones(1))  # type: ignore[operator]
    assert axes(tmp_path / "run") == [("dp", "wrapper")]
