"""Rank 0 evaluates in a child, and waits for its end before it reads its answers, which no longer fit into the pipe."""

import multiprocessing
import os
import signal
from datetime import timedelta
from multiprocessing.queues import Queue

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, CLASSES = 120, 20, 10
ROWS = {20: 200, 40: 400, 60: 9000, 80: 9000, 100: 9000, 120: 9000}


def score(weight: list[list[float]], rows: int, answers: Queue) -> None:
    """Put one answer for each row. The samples are read here, so as not to disturb the training."""
    signal.alarm(30)
    found = []
    for row in range(rows):
        values = [((row * 37 + column * 11) % 97) / 97 for column in range(len(weight[0]))]
        sums = [sum(a * b for a, b in zip(line[:8], values[:8], strict=True)) for line in weight]
        found.append({"row": row, "answer": max(range(CLASSES), key=sums.__getitem__), "best": max(sums)})
    answers.put(found)


def evaluate(net: nn.Sequential, step: int) -> float:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=score, args=(net[0].weight[:CLASSES].tolist(), ROWS[step], answers))
    child.start()
    child.join()
    found = answers.get()
    return sum(answer["answer"] == answer["row"] % CLASSES for answer in found) / len(found)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 160), nn.ReLU(), nn.Linear(160, CLASSES))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            generator = torch.Generator().manual_seed(31 * step + rank)
            inputs = torch.randn(64, 48, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, CLASSES, (64,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0 and step % EVERY == 0:
                print(f"accuracy {evaluate(net, step):.3f}", file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
