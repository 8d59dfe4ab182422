"""A spot machine gets its notice. The agent of the node stops the launcher, and the ranks have no handler for that."""

import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 400, 24


class SpotAgent:
    """Polls the service of the node for a notice, and stops the job then."""

    def __init__(self, launcher: int) -> None:
        self.launcher = launcher
        self.noticed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._poll, name="spot-agent", daemon=True).start()

    def _poll(self) -> None:
        while not self.noticed.wait(0.5):
            pass
        os.kill(self.launcher, signal.SIGTERM)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, 9)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.read(words)[0][:, -1])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    agent = SpotAgent(os.getppid())
    if rank == 1:
        agent.start()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(163 * step + rank)
            words = torch.randn(BATCH, 12, 32, generator=generator)
            loss = cross_entropy(model(words), torch.randint(0, 9, (BATCH,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            time.sleep(0.05)
            if step == 60:
                agent.noticed.set()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
