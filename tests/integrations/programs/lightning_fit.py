"""Six steps of a tiny model with Lightning's Trainer: 2 microbatches of 4 sequences of 8 tokens on each rank.

Arguments: a folder for results; `plain`, `recorded` for the snippet of the docs, or `joined` for the same inside a run
of the script; a tracker, or `none`. With a tracker, the data wait for the first numbers of the agent.
"""

import sys
from contextlib import nullcontext

import lightning.pytorch as pl
import torch
from agent_wait import WaitingRows
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from result import write_result
from snippets import snippet

import traincope

folder, mode, tracker = sys.argv[1:]
LOGGERS = {
    "tensorboard": lambda: TensorBoardLogger(folder, name="tensorboard", version=""),
    "wandb": lambda: WandbLogger(project="test", save_dir=folder, offline=True),
    "mlflow": lambda: MLFlowLogger("test", tracking_uri=f"file:{folder}/mlruns"),
}
losses: list[float] = []


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 16)
        self.head = torch.nn.Linear(16, 32, bias=False)

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        scores = self.head(self.embedding(batch["input_ids"]))
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch["input_ids"].flatten())
        self.log("train_loss", loss)
        losses.append(loss.item())
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
        self.log("held_out", self.head(self.embedding(batch["input_ids"])).mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def loader(size: int) -> torch.utils.data.DataLoader[dict[str, torch.Tensor]]:
    rows = torch.randint(0, 32, (size, 8), generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(
        WaitingRows([{"input_ids": row} for row in rows], folder, tracker, before=36), batch_size=4
    )


pl.seed_everything(0)
model = Model()
settings = {
    "accelerator": "cpu",
    "devices": 2,
    "strategy": "ddp",
    "accumulate_grad_batches": 2,
    "max_steps": 6,
    "val_check_interval": 4,
    "log_every_n_steps": 1,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "logger": LOGGERS[tracker]() if tracker in LOGGERS else False,
}
train_loader, validation_loader = loader(96), loader(8)
with traincope.run() if mode == "joined" else nullcontext() as run:
    if run is not None:
        run.describe(peak_flops=1e9)
    if mode == "plain":
        trainer = pl.Trainer(**settings)
        trainer.fit(model, train_loader, validation_loader)
    else:
        exec(snippet("Lightning"))
write_result(folder, model, losses)
