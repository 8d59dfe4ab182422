"""Optimizer state off the GPU: AdamW's moments in host memory or in files, and the bytes that this frees."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.gpu.figures import Figures
from traincope.engine.config import Config, DataConfig, ModelConfig, OffloadConfig, TrainConfig
from traincope.engine.optimizer.host_adamw import HostAdamW
from traincope.engine.optimizer.streamed_adamw import StreamedAdamW
from traincope.engine.trainer import Trainer

STEPS = 5
A_TENSOR = 512
"""Bytes per tensor besides the moments, such as its counter of steps."""
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    losses: list[float]
    update: int
    """Return the peak of requested GPU bytes during the optimizer's step.

    The allocator may add up to a MiB per tensor.
    """
    numbers: int
    tensors: int


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "squares.txt"
    path.write_text("\n".join(f"{n} squared is {n * n}" for n in range(2000)))
    return str(path)


def train_offloaded(text: str, **offload: Any) -> Outcome:
    config = Config(
        model=ModelConfig(layers=4, hidden=512, ffn=1408),
        data=DataConfig(path=text, held_out=0.2),
        train=TrainConfig(steps=STEPS, batch=2),
        offload=OffloadConfig(**offload),
    )
    gc.collect()  # nothing of the previous trainer may be left
    trainer = Trainer(config, device=torch.device("cuda", 0))
    trainer.optimizer.register_step_pre_hook(lambda *_: torch.cuda.reset_peak_memory_stats())
    losses, update = [], 0
    for result in trainer.steps():
        assert result.loss is not None
        losses.append(result.loss)
        update = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    parameters = list(trainer.modules[0].parameters())
    return Outcome(
        losses=losses,
        update=update,
        numbers=sum(parameter.numel() for parameter in parameters),
        tensors=len(parameters),
    )


def test_moments_on_the_host_save_8_bytes_per_parameter_on_the_gpu(text: str, figures: Figures) -> None:
    kept, left = train_offloaded(text), train_offloaded(text, optimizer="cpu")
    saved, moments = kept.update - left.update, 8 * kept.numbers
    assert moments <= saved + A_TENSOR * 3 * kept.tensors
    assert saved <= moments + A_TENSOR * 3 * kept.tensors
    assert left.losses == pytest.approx(kept.losses, abs=1e-3)
    figures.take(
        "AdamW on the host: bytes a number less on the GPU while it steps",
        measured=f"{saved / kept.numbers:.3f}",
        held_to="8",
    )


def groups(model: nn.Module) -> list[dict[str, Any]]:
    return [{"params": list(model.parameters()), "weight_decay": 0.1}]


def on_host(model: nn.Module) -> torch.optim.Optimizer:
    return HostAdamW(groups(model), **SETTINGS)


def in_files(model: nn.Module) -> torch.optim.Optimizer:
    return StreamedAdamW(groups(model), blocks=[list(model.parameters())], directory=None, **SETTINGS)


@pytest.mark.parametrize("make", [on_host, in_files])
@pytest.mark.usefixtures("nccl")
def test_sharded_state_off_the_gpu_updates_the_shards(
    make: Callable[[nn.Module], torch.optim.Optimizer],
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False, device="cuda")
    fully_shard(model, mesh=init_device_mesh("cuda", (1,), mesh_dim_names=("fsdp",)))
    plain = nn.Parameter(_local(model.weight).detach().cpu().clone())
    reference, optimizer = torch.optim.AdamW([plain], weight_decay=0.1, fused=True, **SETTINGS), make(model)
    for gradient in (torch.randn(64, 64) for _ in range(3)):
        plain.grad = gradient
        model(gradient.cuda()).sum().backward()
        assert model.weight.grad is not None
        _local(model.weight.grad).copy_(gradient)
        optimizer.step()
        reference.step()
    state = optimizer.state[model.weight]
    for name in ("exp_avg", "exp_avg_sq"):
        assert _local(state[name]).device.type == "cpu"
        torch.testing.assert_close(_local(state[name]), reference.state[plain][name], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(_local(model.weight).detach().cpu(), plain.detach(), rtol=1e-5, atol=1e-6)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.usefixtures("nccl")
def test_parameters_loaded_before_the_state_are_updated() -> None:
    model = nn.Linear(8, 8, bias=False, device="cuda")
    optimizer = on_host(model)
    state = optimizer.state_dict()
    with torch.no_grad():
        model.weight.fill_(3.0)
    optimizer.load_state_dict(state)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    expected = 3.0 * (1 - SETTINGS["lr"] * 0.1) - SETTINGS["lr"]
    torch.testing.assert_close(model.weight.detach(), torch.full_like(model.weight, expected))
