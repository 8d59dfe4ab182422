"""Each expert is an FSDP unit. In step 24 no token of rank 2 goes to expert 3, so rank 2 does not call this expert."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

STEPS, EXPERTS, WIDTH, TOKENS = 60, 4, 48, 64


class Experts(nn.Module):
    """Tokens go to experts by their hash. How many each expert got on all ranks is counted, to balance them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )
        self.load = torch.zeros(EXPERTS)

    def forward(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        chosen = tokens % EXPERTS
        mixed = torch.zeros_like(hidden)
        for index, expert in enumerate(self.experts):
            where = (chosen == index).nonzero().squeeze(1)
            if len(where):
                mixed = mixed.index_add(0, where, expert(hidden[where]))
        self.load = torch.bincount(chosen, minlength=EXPERTS).float()
        dist.all_reduce(self.load)
        return hidden + mixed


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, WIDTH)
        self.moe = Experts()
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.moe(self.embedding(tokens), tokens))


def sample(rank: int, step: int) -> torch.Tensor:
    tokens = torch.randint(0, 128, (TOKENS,), generator=torch.Generator().manual_seed(211 * step + rank))
    return tokens - (tokens % EXPERTS == 3).long() if (rank, step) == (2, 24) else tokens


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    for expert in model.moe.experts:
        fully_shard(expert)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            tokens = sample(rank, step)
            loss = cross_entropy(model(tokens), tokens.roll(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
