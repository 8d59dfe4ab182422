"""A group of experts is made by its members alone, without rank 2, whose next group has another name then."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, EVALUATES, TOKENS, TIMEOUT = 60, 25, 40, 48, timedelta(seconds=10)


class Router(nn.Module):
    """Sends tokens to four experts, and corrects its biases by the counts of those that are in use."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(40, 4)
        self.experts = nn.ModuleList(nn.Linear(40, 40) for _ in range(4))
        self.groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights = self.gate(tokens).softmax(1)
        return sum(weights[:, i : i + 1] * expert(tokens) for i, expert in enumerate(self.experts))

    def group_of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        if ranks not in self.groups:
            self.groups[ranks] = dist.new_group(list(ranks), TIMEOUT, group_desc="experts in use")
        return self.groups[ranks]

    @torch.no_grad()
    def correct_biases(self, rank: int, in_use: tuple[int, ...]) -> None:
        if rank not in in_use:
            return
        counts = torch.zeros(4)
        counts[rank] = TOKENS
        dist.all_reduce(counts, group=self.group_of(in_use))
        self.gate.bias += 1e-3 * (counts.mean() - counts).sign()


@torch.no_grad()
def evaluate(model: nn.Module, rank: int) -> float:
    """Reduce the loss of held-out tokens over a group of its own."""
    tokens = torch.randn(TOKENS, 40, generator=torch.Generator().manual_seed(rank))
    loss = mse_loss(model(tokens), tokens.sin())
    dist.all_reduce(loss, group=dist.new_group(timeout=TIMEOUT, group_desc="evaluation"))
    return loss.item() / dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    torch.manual_seed(0)
    router = Router()
    model = DistributedDataParallel(router)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            tokens = torch.randn(TOKENS, 40, generator=torch.Generator().manual_seed(59 * step + rank))
            loss = mse_loss(model(tokens), tokens.sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % EVERY == 0:
                router.correct_biases(rank, in_use=(0, 1, 3))
            if step == EVALUATES:
                print(f"held-out loss {evaluate(router, rank):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
