"""The second launch finds more words in the vocabulary than the checkpoint has."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 40
VOCABULARY, CHECKPOINT = Path("vocabulary.txt"), Path("latest.pt")


class Tagger(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, 64), nn.Linear(64, 9)
        self.mix = nn.GRU(64, 64, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embedding(tokens))[0])


def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    state = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0 and not VOCABULARY.exists():
        VOCABULARY.write_text("".join(f"word{i}\n" for i in range(500)))
    dist.barrier()
    words = len(VOCABULARY.read_text().split())
    torch.manual_seed(0)
    net = Tagger(words)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    start = load(net, optimizer) if CHECKPOINT.exists() else 0
    model = DistributedDataParallel(net)
    with open(f"{os.environ['LOSS_OUT']}.{start}.{rank}", "w") as losses:
        for step in range(start, start + STEPS):
            generator = torch.Generator().manual_seed(47 * step + rank)
            tokens = torch.randint(0, words, (8, 12), generator=generator)
            loss = cross_entropy(model(tokens).flatten(0, 1), (tokens % 9).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.barrier()
    if rank == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": start + STEPS}, CHECKPOINT)
        with VOCABULARY.open("a") as grown:
            grown.writelines(f"new{i}\n" for i in range(7))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
