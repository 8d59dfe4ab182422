"""Ray Train's TorchTrainer: two workers with DDP, a DataLoader and two checkpoints. Ray starts the workers."""

import sys
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, INPUTS, HIDDEN, OUTPUTS, EVERY = 12, 8, 32, 64, 16, 6
TRIES = 4


def train(settings: dict[str, str]) -> None:
    directory, rank = settings["directory"], ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2 * STEPS * BATCH, INPUTS), torch.randn(2 * STEPS * BATCH, OUTPUTS))
    batches = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=BATCH))
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for number, (inputs, targets) in enumerate(batches, start=1):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        checkpoint = None
        if number % EVERY == 0 and rank == 0:
            place = Path(directory, str(number))
            place.mkdir()
            torch.save(model.module.state_dict(), place / "model.pt")
            checkpoint = Checkpoint.from_directory(str(place))
        ray.train.report({"loss": losses[-1]}, checkpoint=checkpoint)
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


def begin() -> None:
    """Start a Ray of this machine. It gives its node 30 s for that, and no setting changes them: on a busy machine the
    second or third start succeeds.
    """
    for left in range(TRIES - 1, -1, -1):
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        except Exception:
            ray.shutdown()
            if not left:
                raise
        else:
            return


def settings_of(directory: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings of a TorchTrainer and of its RunConfig."""
    return {
        "train_loop_config": {"directory": directory},
        "torch_config": ray.train.torch.TorchConfig(backend="gloo"),
        "scaling_config": ScalingConfig(num_workers=2),
    }, {"name": "run", "storage_path": f"{directory}/ray"}


def main(directory: str) -> None:
    begin()
    settings, of_run = settings_of(directory)
    ray.train.torch.TorchTrainer(train, **settings, run_config=RunConfig(**of_run)).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
