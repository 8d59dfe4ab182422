"""A small training in which everything depends on every bit before: no fault of the recorder may change it."""

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import traincope
from traincope.record.segments import writer

STEPS = 8
FAULT_STEP = 3
"""The step before which a fault happens."""
SMALL_SEGMENT = 40
"""Records per segment: several segments per step, so that every fault of their files has an effect."""

Outcome = dict[str, str]
"""Losses, parameters and the states of both random number generators, in hexadecimal."""


def train(at: Callable[[int], None] = lambda _: None) -> Outcome:
    """Train from the same start, with a group, a loader, dropout, spans and events. `at` is called every step."""
    torch.manual_seed(0)
    random.seed(0)
    join_a_group()
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data, losses = DataLoader(torch.randn(4 * STEPS, 8), batch_size=4, shuffle=True), []
    for step, batch in enumerate(data):
        at(step)
        losses.append(train_one_step(model, optimizer, batch))
    return {
        "losses": digest(torch.tensor(losses, dtype=torch.float64)),
        "parameters": digest(torch.cat([p.detach().flatten() for p in model.parameters()])),
        "torch": digest(torch.get_rng_state()),
        "python": hashlib.sha1(repr(random.getstate()).encode()).hexdigest(),
    }


def join_a_group() -> None:
    """A group of this process alone, unless one exists."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=0, world_size=1)


def train_one_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    with traincope.span("train one step"):
        loss: torch.Tensor = model(batch).square().mean() * random.uniform(0.9, 1.1)
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            dist.all_reduce(parameter.grad, async_op=True).wait()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for number in range(10):
        with traincope.span(f"a span {number}"):
            traincope.event("seen", loss=number)
    traincope.log(loss=loss.item())
    traincope.step()
    return loss.item()


def train_observed(out: str | Path, at: Callable[[int], None] = lambda _: None, *, level: int = 2) -> Outcome:
    """Run the same training under a run with small segments."""
    writer.CAPACITY = SMALL_SEGMENT
    writer.RETRY_NS = 0
    with traincope.run(out, level=level, budget=None):
        return train(at)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha1(tensor.numpy().tobytes()).hexdigest()
