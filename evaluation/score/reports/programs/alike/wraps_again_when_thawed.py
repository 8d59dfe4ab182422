"""The backbone is frozen for the first third of the run. When it thaws, DDP wraps the model anew, as it has to."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, THAWS = 150, 50


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(512, 11)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images))


class FineTuning:
    """The two phases of the run, each with its wrapper and its optimizer."""

    def __init__(self, net: Classifier) -> None:
        self.net = net
        net.backbone.requires_grad_(False)
        self.start(lr=3e-3)

    def start(self, lr: float) -> None:
        self.model = DistributedDataParallel(self.net)
        trained = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=lr)

    def thaw(self) -> None:
        del self.model
        self.net.backbone.requires_grad_(True)
        self.start(lr=3e-4)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tuning = FineTuning(Classifier())
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if step == THAWS:
                tuning.thaw()
            generator = torch.Generator().manual_seed(67 * step + rank)
            images = torch.randn(24, 3, 40, 40, generator=generator)
            loss = tuning.step(images, torch.randint(0, 11, (24,), generator=generator))
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
