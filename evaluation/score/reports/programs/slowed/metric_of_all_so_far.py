"""A metric is computed in each step, over the answers of all steps so far, on all ranks: their steps grow longer."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 180, 1024


class AreaUnderCurve:
    """Keeps all answers, since the area cannot be computed of parts."""

    def __init__(self) -> None:
        self.scores, self.targets = torch.empty(STEPS * BATCH), torch.empty(STEPS * BATCH)
        self.count = 0

    def update(self, scores: torch.Tensor, targets: torch.Tensor) -> float:
        added = slice(self.count, self.count + len(scores))
        self.scores[added], self.targets[added] = scores.detach(), targets
        self.count = added.stop
        return self.area()

    def area(self) -> float:
        order = self.scores[: self.count].argsort(descending=True)
        hits = self.targets[: self.count][order]
        found, wrong = hits.cumsum(0), (1 - hits).cumsum(0)
        return torch.trapezoid(found / found[-1], wrong / wrong[-1]).item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    metric = AreaUnderCurve()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(BATCH, 24, generator=torch.Generator().manual_seed(139 * step + rank))
            targets = (inputs[:, :4].sum(1) > 0).float()
            scores = model(inputs).squeeze(1)
            loss = binary_cross_entropy_with_logits(scores, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), f"{metric.update(scores, targets):.4f}", file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
