"""Leaving the `with` restores torch: every attribute, hook and dispatch table."""

import gc
import inspect
import pickle
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import autograd
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules, stage
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import optimizer
from torch.utils.data import dataloader

import traincope
from tests.distributed.ranks.pool import Pool
from traincope.record.communication.operations import OPERATIONS

OWNERS: tuple[Any, ...] = (
    torch,
    torch.nn,
    torch.nn.Module,
    torch.nn.utils,
    clip_grad,
    autograd,
    torch.Tensor,
    optimizer,
    optimizer.Optimizer,
    dist,
    dist.distributed_c10d,
    dist.Work,
    dist.ProcessGroup,
    DeviceMesh,
    DistributedDataParallel,
    schedules,
    schedules._PipelineSchedule,
    schedules.PipelineScheduleSingle,
    schedules.PipelineScheduleMulti,
    stage,
    stage._PipelineStageBase,
    dataloader,
    dataloader._BaseDataLoaderIter,
    torch.amp.GradScaler,
    torch.cuda.Event,
    checkpoint,
    state_dict_loader,
    state_dict_saver,
)
OPERATORS = (*(f"c10d::{operation.op}" for operation in OPERATIONS), "_c10d_functional::wait_tensor")


def snapshot() -> dict[str, int | str]:
    """Return the identity of every attribute of the owners, of every hook list's content, and every dispatch table."""
    state: dict[str, int | str] = {}
    for owner in OWNERS:
        name = owner.__name__ if isinstance(owner, ModuleType) or inspect.isclass(owner) else repr(owner)
        state |= {f"{name}.{key}": id(value) for key, value in vars(owner).items() if key != "__warningregistry__"}
    state |= {f"table of {operator}": torch._C._dispatch_dump_table(operator) for operator in OPERATORS}
    state |= {f"kernels of {operator}": torch._C._dispatch_dump(operator) for operator in OPERATORS}
    state["optimizer hooks"] = repr([*optimizer._global_optimizer_pre_hooks, *optimizer._global_optimizer_post_hooks])
    state["gc callbacks"] = repr(gc.callbacks)
    return state


def differences(before: dict[str, int | str], after: dict[str, int | str]) -> set[str]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def test_torch_is_patched_during_a_run_and_restored_after_it(tmp_path: Path) -> None:
    before = snapshot()
    with traincope.run(tmp_path / "run"):
        inside = differences(before, snapshot())
    assert differences(before, snapshot()) == set()
    assert {"Work.wait", "Module.__call__", "table of c10d::allreduce_", "gc callbacks"} <= inside


def test_torch_is_restored_after_an_exception(tmp_path: Path) -> None:
    before = snapshot()
    try:
        with traincope.run(tmp_path / "run"):
            raise ValueError
    except ValueError:
        pass
    assert differences(before, snapshot()) == set()


def test_torch_is_restored_when_the_disk_is_full(tmp_path: Path) -> None:
    before = snapshot()
    with traincope.run(tmp_path / "run") as run:
        run.step()
        shutil.rmtree(tmp_path / "run")
    assert differences(before, snapshot()) == set()


def test_a_patch_on_top_of_ours_stays_and_works(tmp_path: Path) -> None:
    original = torch.nn.Module.__call__
    try:
        with traincope.run(tmp_path / "run"):
            ours = torch.nn.Module.__call__

            def later_patch(module: torch.nn.Module, *args: Any) -> Any:
                return ours(module, *args) + 1

            torch.nn.Module.__call__ = later_patch  # type: ignore[method-assign]
        assert torch.nn.Module.__call__ is later_patch
        assert torch.nn.Identity()(torch.zeros(1)).item() == 1
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


def train_after_leaving(directory: str) -> list[float]:
    tensor = torch.full((4,), float(dist.get_rank() + 1))
    with traincope.run(directory):
        dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    return [float(value) for value in tensor]


def test_collectives_work_after_a_run(two_ranks: Pool, tmp_path: Path) -> None:
    assert two_ranks.run(train_after_leaving, str(tmp_path / "run")) == [[6.0] * 4] * 2


def test_replaced_functions_of_torch_can_be_pickled(tmp_path: Path) -> None:
    """A process pool that must call `torch.save` finds torch's own function."""
    modules = (torch, torch.nn.utils, autograd, autograd.graph, checkpoint, state_dict_saver, state_dict_loader)
    before = {id(module): dict(vars(module)) for module in modules}
    pickled = []
    with traincope.run(tmp_path / "run", level=2):
        for module in modules:
            replaced = [(k, v) for k, v in vars(module).items() if before[id(module)].get(k) is not v]
            pickled += [(module, name, pickle.dumps(value)) for name, value in replaced]
    assert {"save", "load", "clip_grad_norm_", "_engine_run_backward", "async_save"} <= {name for _, name, _ in pickled}
    assert all(pickle.loads(text) is getattr(module, name) for module, name, text in pickled)


def test_a_function_that_was_imported_before_the_run_can_be_pickled_in_it(tmp_path: Path) -> None:
    """A training keeps it in its settings, which go into its checkpoints."""
    early = (torch.nn.utils.clip_grad_norm_, torch.save, torch.load, autograd.grad, autograd.backward)
    with traincope.run(tmp_path / "run"):
        assert torch.nn.utils.clip_grad_norm_ is not early[0]
        assert pickle.loads(pickle.dumps(early)) == early


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_functions_of_autograd_that_others_know_by_identity_stay(tmp_path: Path) -> None:
    """TorchScript compiles these to its operators. A force field trains on the gradient of its energy."""

    def force(x: torch.Tensor) -> torch.Tensor:
        gradient = torch.autograd.grad([(x * x).sum()], [x])[0]
        assert gradient is not None
        return gradient

    with traincope.run(tmp_path / "run"):
        scripted = torch.jit.script(force)
        assert scripted(torch.ones(2, requires_grad=True)).tolist() == [2.0, 2.0]
        assert pickle.loads(pickle.dumps(autograd.grad)) is autograd.grad


def test_a_default_that_the_training_changes_is_the_original_s(tmp_path: Path) -> None:
    path, defaults = tmp_path / "a.pt", dict(torch.load.__kwdefaults__)
    torch.save({"function": test_a_default_that_the_training_changes_is_the_original_s}, path)
    try:
        with traincope.run(tmp_path / "run"):
            assert torch.save.__defaults__ is inspect.unwrap(torch.save).__defaults__
            torch.load.__kwdefaults__["weights_only"] = False
            assert list(torch.load(path)) == ["function"]
    finally:
        torch.load.__kwdefaults__.update(defaults)
