"""Parts of the loop that all jobs share: the injected fault, generation, scoring, training."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.cli.launch.grpo import CLIP, GROUP_SIZE, GROUPS, MODEL, PROMPT, VOWELS, advantages_of, log_probabilities
from traincope.engine.model.model import GPT

STEPS = int(os.environ.get("STEPS", "50"))
COMPLETION = 16
ENVIRONMENT_SECONDS, REWARD_SECONDS = 0.005, 0.01
EVERY_ROLE = "*"


@dataclass(frozen=True)
class Fault:
    """What one part of a job does in addition, in each step: on one rank, or on all."""

    part: str = ""
    rank: int | None = None
    seconds: float = 0.0
    how: str = "sleep"
    """`sleep`; `work`: Python computes; `long`: completions have 5 times as many tokens; `repeat`: done 6 times;
    `vary`: sleeps in one step of three, by turns of the ranks.
    """
    role: str = ""
    """Role that has the fault. Empty: the only job."""

    @classmethod
    def given(cls) -> "Fault":
        fault = cls(**json.loads(os.environ.get("FAULT", "{}")))
        return fault if fault.role in (os.environ.get("ROLE", ""), EVERY_ROLE) else cls()

    def strikes(self, part: str, rank: int) -> bool:
        return self.part == part and self.rank in (None, rank)

    def strike(self, part: str, rank: int, step: int) -> None:
        """Take the time of the fault, inside the part."""
        if not self.strikes(part, rank):
            return
        if self.how == "sleep" or (self.how == "vary" and (step + rank) % 3 == 0):
            time.sleep(self.seconds)
        elif self.how == "work":
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until:
                sum(range(1_000))

    def times(self, part: str, rank: int) -> int:
        return 6 if self.how == "repeat" and self.strikes(part, rank) else 1


def prompts_of(generator: torch.Generator) -> Tensor:
    return torch.randint(97, 123, (GROUPS, PROMPT), generator=generator).repeat_interleave(GROUP_SIZE, dim=0)


def generate(model: GPT, prompts: Tensor, generator: torch.Generator, fault: Fault, *, rank: int, step: int) -> Tensor:
    """Sample completions: prompts (B, P) -> tokens (B, P + COMPLETION). A long one is cut to that length."""
    tokens = prompts
    longer = 5 if fault.how == "long" and fault.strikes("generate", rank) else 1
    with torch.no_grad():
        for _ in range(COMPLETION * longer):
            chances = model(tokens[:, -MODEL.sequence :])[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], dim=1)
    fault.strike("generate", rank, step)
    return tokens[:, : PROMPT + COMPLETION]


def act(fault: Fault, *, rank: int, step: int) -> None:
    """The environment answers: a tool, a browser, a simulator."""
    time.sleep(ENVIRONMENT_SECONDS)
    fault.strike("environment", rank, step)


def score(tokens: Tensor, fault: Fault, *, rank: int, step: int) -> Tensor:
    """Share of vowels in each completion (B)."""
    time.sleep(REWARD_SECONDS)
    fault.strike("reward", rank, step)
    return torch.isin(tokens[:, PROMPT:], torch.tensor(VOWELS)).float().mean(dim=1)


def before(policy: GPT, tokens: Tensor, fault: Fault, *, rank: int, step: int) -> Tensor:
    """Log-probabilities of the completions before the update."""
    with torch.no_grad():
        for _ in range(fault.times("logprob", rank)):
            logs = log_probabilities(policy, tokens)
    fault.strike("logprob", rank, step)
    return logs


def relative(rewards: Tensor, fault: Fault, *, rank: int, step: int) -> Tensor:
    fault.strike("advantage", rank, step)
    return advantages_of(rewards).unsqueeze(1)


def update(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    logs: Tensor,
    advantages: Tensor,
    fault: Fault,
    *,
    rank: int,
) -> float:
    """Train once on the samples; return the loss."""
    for _ in range(fault.times("train", rank)):
        ratio = (log_probabilities(model, tokens) - logs).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def keep(losses: list[float], rank: int) -> None:
    """Write the losses, to compare them with a bare run."""
    if "LOSS_OUT" in os.environ:
        Path(f"{os.environ['LOSS_OUT']}.{rank}").write_text("\n".join(map(repr, losses)))


def begin() -> int:
    """Join the job's process group; return the rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank()
