"""The launcher may restart all ranks twice. In the first attempt, rank 1 loses its object store in step 55."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY, WORLD = 110, 20, 3
CHECKPOINT = Path("checkpoint.pt")
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class ObjectStore:
    """A bucket of token shards, read over a connection of its own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def read(self, step: int) -> torch.Tensor:
        if (ATTEMPT, self.rank, step) == (0, 1, 55):
            raise ConnectionResetError(104, "Connection reset by peer: s3://corpus/shard-0055")
        return torch.randint(0, 512, (10, 48), generator=torch.Generator().manual_seed(97 * step + self.rank))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(512, 128)
        self.layers = nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True)
        self.out = nn.Linear(128, 512)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.words(words)))


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net, first = Language(), 0
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4)
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    model, store = DistributedDataParallel(net), ObjectStore(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "a") as losses:
        for step in range(first, STEPS):
            words = store.read(step)
            loss = cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if (step + 1) % SAVE_EVERY == 0:
                if rank == 0:
                    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                    torch.save(state, CHECKPOINT)
                dist.barrier()
    dist.destroy_process_group()


def launch() -> int:
    options = ["--standalone", f"--nproc-per-node={WORLD}", "--max-restarts=2", "--monitor-interval=0.5"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, __file__]
    own_store_of_each_attempt = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.call(command, env=os.environ | own_store_of_each_attempt)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(launch())
