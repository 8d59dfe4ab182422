"""In every fourth step rank 0 attaches hooks for statistics of activations, and takes none of them off again."""

import os
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, LOG_EVERY, DEPTH = 120, 4, 8


class ActivationStats:
    """Quantiles of what each layer gives, for a page of the dashboard."""

    def __init__(self) -> None:
        self.latest: dict[str, torch.Tensor] = {}
        self.counts: dict[str, int] = defaultdict(int)

    def attach(self, net: nn.Module) -> None:
        for name, layer in net.named_modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(self.recorder(name))

    def recorder(self, name: str):  # type: ignore[no-untyped-def]
        def record(_layer: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            with torch.no_grad():
                self.latest[name] = output.flatten().quantile(torch.tensor([0.01, 0.5, 0.99]))
            self.counts[name] += 1

        return record


def network() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(48, 96), nn.Tanh()]
    for _ in range(DEPTH):
        layers += [nn.Linear(96, 96), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(96, 12))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = network()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    stats = ActivationStats()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if rank == 0 and step % LOG_EVERY == 0:
                stats.attach(net)
            generator = torch.Generator().manual_seed(233 * step + rank)
            inputs = torch.randn(64, 48, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 12, (64,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
