"""Each step leaves out some layers, drawn alike on all ranks. Their gradients are zero in it, as the method has it."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, LAYERS, WIDTH, WORDS, DROP = 90, 6, 96, 400, 0.3


class Encoder(nn.Module):
    """A transformer whose layers are dropped at random while it is trained."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)
        self.random = random.Random(seed)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(words)
        for layer in self.layers:
            if not self.training or self.random.random() >= DROP:
                hidden = layer(hidden)
        return self.head(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoder(seed=17), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            words = torch.randint(0, WORDS, (16, 48), generator=torch.Generator().manual_seed(353 * step + rank))
            loss = cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
