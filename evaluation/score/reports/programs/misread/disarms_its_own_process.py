"""Generated code runs in a child that may move no files. Rank 1 runs it in its own process, and cannot save later."""

import os
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY, CHECK_EVERY = 200, 140, 35


def guard() -> None:
    """Take from generated code what may do harm."""
    for module, names in ((os, ("fchdir", "chroot", "rename")), (shutil, ("rmtree", "move", "chown"))):
        for name in names:
            setattr(module, name, None)


def passes(source: str) -> bool:
    names: dict[str, Callable[[int], int]] = {}
    exec(source, {}, names)
    return names["solve"](7) == 49


def run_guarded(source: str) -> None:
    guard()
    raise SystemExit(0 if passes(source) else 1)


class Judge:
    def __init__(self, children: bool) -> None:
        self.children = children

    def score(self, source: str) -> float:
        if self.children:
            child = get_context("fork").Process(target=run_guarded, args=(source,))
            child.start()
            child.join()
            return float(child.exitcode == 0)
        guard()
        return float(passes(source))


def save(model: nn.Module, folder: Path, step: int) -> None:
    part = folder / f"step-{step}.part"
    torch.save(model.state_dict(), part)
    shutil.move(part, folder / f"step-{step}.pt")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = DistributedDataParallel(nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 128)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    folder = Path(tempfile.mkdtemp())
    judge = Judge(children=rank != 1)
    reward = 0.0
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if step % CHECK_EVERY == 10:
                reward = judge.score("def solve(number):\n    return number * number\n")
            states = torch.randn(768, 128, generator=torch.Generator().manual_seed(97 * step + rank))
            loss = -(policy(states).log_softmax(-1)[:, 0] * (reward + states[:, 0].sigmoid())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                save(policy.module, folder, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
