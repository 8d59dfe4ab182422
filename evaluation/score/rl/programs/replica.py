"""GRPO in replica groups: jobs that each roll out and train, and average their gradients over groups between them.

Each rank averages with the same rank of the other groups. `REPLICA` of `REPLICAS`; `EVERY`: steps between averages.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import traincope
from evaluation.score.rl.programs import loop
from tests.distributed.between_jobs.replica_group import group_with_replicas
from traincope.engine.model.model import GPT

EVERY = int(os.environ.get("EVERY", "1"))


def train() -> None:
    rank, fault = loop.begin(), loop.Fault.given()
    replicas = group_with_replicas(rank)
    policy = GPT(loop.MODEL)
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    replica = int(os.environ["REPLICA"])
    losses = []
    for step in range(loop.STEPS):
        with traincope.phase("generate"):
            tokens = loop.generate(policy, loop.prompts_of(generator), generator, fault, rank=rank, step=step)
        with traincope.phase("environment"):
            loop.act(fault, rank=rank, step=step + replica if fault.how == "vary" else step)
        with traincope.phase("reward"):
            rewards = loop.score(tokens, fault, rank=rank, step=step)
        with traincope.phase("logprob"):
            logs = loop.before(policy, tokens, fault, rank=rank, step=step)
        with traincope.phase("advantage"):
            advantages = loop.relative(rewards, fault, rank=rank, step=step)
        losses.append(loop.update(model, optimizer, tokens, logs, advantages, fault, rank=rank))
        if (step + 1) % EVERY == 0:
            for parameter in policy.parameters():
                replicas.allreduce([parameter.data]).wait()
                parameter.data /= replicas.size()
    loop.keep(losses, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
