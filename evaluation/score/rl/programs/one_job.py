"""GRPO in one job: each rank generates, scores and trains."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import traincope
from evaluation.score.rl.programs import loop
from traincope.engine.model.model import GPT


def train() -> None:
    rank, fault = loop.begin(), loop.Fault.given()
    policy, engine = GPT(loop.MODEL), GPT(loop.MODEL)
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    held = fault.part == "stale"
    losses, version = [], 0
    for step in range(loop.STEPS):
        with traincope.phase("weight_sync"):
            if not held:
                engine.load_state_dict(policy.state_dict())
                version = step
            fault.strike("weight_sync", rank, step)
        with traincope.phase("generate"):
            tokens = loop.generate(engine, loop.prompts_of(generator), generator, fault, rank=rank, step=step)
        with traincope.phase("environment"):
            loop.act(fault, rank=rank, step=step)
        with traincope.phase("reward"):
            rewards = loop.score(tokens, fault, rank=rank, step=step)
            if "GATHERS" in os.environ:
                dist.all_reduce(rewards.sum())
        with traincope.phase("logprob"):
            logs = loop.before(policy, tokens, fault, rank=rank, step=step)
        with traincope.phase("advantage"):
            advantages = loop.relative(rewards, fault, rank=rank, step=step)
        losses.append(loop.update(model, optimizer, tokens, logs, advantages, fault, rank=rank))
        traincope.log(weights_version=step, rollout_version=version)
    loop.keep(losses, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
