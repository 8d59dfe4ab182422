"""A small loop of GRPO, to see where the time of a post-training step goes: `traincope demo --rl`.

Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300, section 4.1) of a GPT that learns to write
vowels. A step generates groups of completions, scores them, takes log-probabilities, and trains on them once. The last
rank scores with a slower function, so that there is something to find.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import traincope
from traincope.cli.screen import make_safe
from traincope.engine.config import ModelConfig
from traincope.engine.model.model import GPT

MODEL = ModelConfig(layers=2, hidden=64, heads=4, kv_heads=4, ffn=128, sequence=32, vocabulary=128)
GROUPS, GROUP_SIZE = 4, 8
"""Prompts of a rank and step, and completions of a prompt."""
PROMPT, COMPLETION = 8, 16
"""Tokens."""
CLIP = 0.2
"""Largest change of a token's probability ratio that is rewarded."""
VOWELS = tuple(map(ord, "aeiou"))
SCORING_SECONDS, SLOW_SCORING_SECONDS = 0.02, 0.1


def generate(model: GPT, prompts: Tensor, *, generator: torch.Generator) -> Tensor:
    """Sample completions: prompts (B, P) -> tokens (B, P + COMPLETION)."""
    tokens = prompts
    with torch.no_grad():
        for _ in range(COMPLETION):
            chances = model(tokens)[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return tokens


def score(completions: Tensor, *, seconds: float) -> Tensor:
    """Share of vowels in each completion (B, T) -> (B). A real reward would run tests, or a model of its own."""
    time.sleep(seconds)
    return torch.isin(completions, torch.tensor(VOWELS)).float().mean(dim=1)


def log_probabilities(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Log-probability of each token of the completions, (B, T)."""
    logits = model(tokens[:, :-1])[:, PROMPT - 1 :]
    return -cross_entropy(logits.transpose(1, 2), tokens[:, PROMPT:], reduction="none")


def advantages_of(rewards: Tensor) -> Tensor:
    """Rewards (B) relative to those of the same prompt."""
    groups = rewards.view(-1, GROUP_SIZE)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def train(steps: int) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    policy = GPT(MODEL)
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    seconds = SLOW_SCORING_SECONDS if rank == ranks - 1 else SCORING_SECONDS
    for _ in range(steps):
        prompts = torch.randint(97, 123, (GROUPS, PROMPT), generator=generator).repeat_interleave(GROUP_SIZE, dim=0)
        with traincope.phase("generate"):
            tokens = generate(policy, prompts, generator=generator)
        with traincope.phase("reward"):
            rewards = score(tokens[:, PROMPT:], seconds=seconds)
            total = rewards.sum()
            dist.all_reduce(total)
        with traincope.phase("logprob"), torch.no_grad():
            before = log_probabilities(policy, tokens)
        with traincope.phase("advantage"):
            advantages = advantages_of(rewards).unsqueeze(1)
        ratio = (log_probabilities(model, tokens) - before).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        traincope.log(reward=total.item() / (ranks * len(rewards)), loss=loss.item(), step_tokens=tokens.numel())
    dist.destroy_process_group()


if __name__ == "__main__":
    make_safe()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    train(parser.parse_args().steps)
