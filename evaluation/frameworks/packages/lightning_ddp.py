"""Lightning's Trainer with DDP, accumulation, validation and checkpoints. It starts its second rank itself."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, MICROBATCHES, BATCH, INPUTS, HIDDEN, OUTPUTS, EVERY = 12, 2, 8, 32, 64, 16, 6


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.losses.append(nn.functional.mse_loss(self.layers(batch[0]), batch[1]).item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def batches(count: int) -> DataLoader:
    generator = torch.Generator().manual_seed(count)
    tensors = (torch.randn(count, width, generator=generator) for width in (INPUTS, OUTPUTS))
    return DataLoader(TensorDataset(*tensors), batch_size=BATCH)


def main(directory: str) -> None:
    torch.manual_seed(0)
    model = Regression()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        accumulate_grad_batches=MICROBATCHES,
        val_check_interval=EVERY * MICROBATCHES,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(dirpath=f"{directory}/saved", every_n_train_steps=EVERY, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, batches(STEPS * MICROBATCHES * BATCH * 2), batches(4 * BATCH))
    Path(directory, f"losses-{trainer.global_rank}").write_text("\n".join(map(float.hex, model.losses)))


if __name__ == "__main__":
    main(sys.argv[1])
    time.sleep(0.5)  # a thread of gloo that lets go of its last work while Python ends aborts the process
    dist.destroy_process_group()
