"""Two domains share their hard samples in their own groups. Rank 3 finds none after a while, and returns early."""

import os
from datetime import timedelta
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, SHARE_EVERY, LIMIT = 120, 10, 0.8
LIMITS = timedelta(seconds=10)


class Domain:
    """The samples of one domain, which two ranks read, and those of them that are worth to be seen again."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        groups = [dist.new_group([first, first + 1], timeout=LIMITS) for first in (0, 2)]
        self.group = groups[rank // 2]
        self.hard: list[dict[str, float]] = []

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(61 * step + self.rank)
        noise = torch.rand(256, generator=generator)
        if self.rank == 3 and step >= 50:
            noise *= LIMIT
        self.hard += [{"step": step, "noise": value} for value in noise.tolist() if value > LIMIT]
        inputs = torch.randn(256, 96, generator=generator)
        return inputs + noise[:, None], (inputs.sum(1) > 0).long()

    def share(self) -> list[dict[str, float]]:
        if not self.hard:
            return []
        parts: list[list[dict[str, float]]] = [[], []]
        dist.all_gather_object(parts, self.hard, group=self.group)
        self.hard = []
        return sorted(chain.from_iterable(parts), key=lambda sample: -sample["noise"])[:16]


def main() -> None:
    dist.init_process_group("gloo", timeout=LIMITS)
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    domain = Domain(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, labels = domain.batch(step)
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % SHARE_EVERY == SHARE_EVERY - 1:
                domain.share()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
