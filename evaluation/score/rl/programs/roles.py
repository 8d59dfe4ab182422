"""GRPO as roles, jobs of their own that exchange files: an actor generates, a rewarder scores, a trainer trains.

`ROLE` is the job's. `LEAD`: number of batches that the actor makes ahead of the trainer; 0 works in turns. `REWARDER`:
the rewarder is a job too. `LEAVES`: the actor ends after so many batches, and the trainer gives up soon after.
`COURIER`: seconds for which a batch is under way. `HOLDS`: the actor loads no weights after so many batches.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import traincope
from evaluation.score.rl.programs import loop
from traincope.engine.model.model import GPT

EXCHANGE = Path(os.environ["EXCHANGE"])
LEAD = int(os.environ.get("LEAD", "0"))
LEAVES = int(os.environ.get("LEAVES", "0"))
HOLDS = int(os.environ.get("HOLDS", "0"))
COURIER_SECONDS = float(os.environ.get("COURIER", "0"))
REWARDER = "REWARDER" in os.environ
PATIENCE_SECONDS = 3.0


def put(name: str, value: Any) -> None:
    path = EXCHANGE / name
    torch.save(value, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def get(name: str, *, of: str) -> Any:
    """Wait for a file of another job; None if that takes too long and the actor leaves."""
    path, since = EXCHANGE / name, time.monotonic()
    with traincope.wait_for(of):
        while not (path.exists() and time.time() - path.stat().st_mtime >= COURIER_SECONDS):
            if LEAVES and time.monotonic() - since > PATIENCE_SECONDS:
                return None
            time.sleep(0.002)
    return torch.load(path, weights_only=True)


def actor(rank: int, fault: loop.Fault) -> None:
    policy, generator = GPT(loop.MODEL), torch.Generator().manual_seed(rank)
    version = 0
    for step in range(LEAVES or loop.STEPS):
        if step > LEAD:
            weights = get(f"weights-{step - LEAD - 1}", of="trainer")
            with traincope.phase("weight_sync"):
                if not HOLDS or step < HOLDS:
                    policy.load_state_dict(weights)
                    version = step - LEAD
                fault.strike("weight_sync", rank, step)
        with traincope.phase("generate"):
            tokens = loop.generate(policy, loop.prompts_of(generator), generator, fault, rank=rank, step=step)
        with traincope.phase("environment"):
            loop.act(fault, rank=rank, step=step)
        put(f"rollout-{step}-{rank}", {"tokens": tokens, "version": version})


def rewarder(rank: int, fault: loop.Fault) -> None:
    for step in range(loop.STEPS):
        tokens = get(f"rollout-{step}-{rank}", of="actor")["tokens"]
        with traincope.phase("reward"):
            rewards = loop.score(tokens, fault, rank=rank, step=step)
        put(f"reward-{step}-{rank}", rewards)


def trainer(rank: int, fault: loop.Fault) -> None:
    policy = GPT(loop.MODEL)
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(loop.STEPS):
        rollout = get(f"rollout-{step}-{rank}", of="actor")
        if rollout is None:
            break
        tokens = rollout["tokens"]
        if REWARDER:
            rewards = get(f"reward-{step}-{rank}", of="rewarder")
        else:
            with traincope.phase("reward"):
                rewards = loop.score(tokens, fault, rank=rank, step=step)
        with traincope.phase("logprob"):
            logs = loop.before(policy, tokens, fault, rank=rank, step=step)
        with traincope.phase("advantage"):
            advantages = loop.relative(rewards, fault, rank=rank, step=step)
        losses.append(loop.update(model, optimizer, tokens, logs, advantages, fault, rank=rank))
        with traincope.phase("weight_sync"):
            if rank == 0:
                put(f"weights-{step}", policy.state_dict())
        traincope.log(weights_version=step, rollout_version=rollout["version"])
    loop.keep(losses, rank)


if __name__ == "__main__":
    {"actor": actor, "rewarder": rewarder, "trainer": trainer}[os.environ["ROLE"]](loop.begin(), loop.Fault.given())
    dist.destroy_process_group()
