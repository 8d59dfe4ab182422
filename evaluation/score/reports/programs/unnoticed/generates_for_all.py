"""Rank 0 gathers the prompts of all ranks, generates all completions, and sends them back. The others wait for it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, PROMPTS, PROMPT, LENGTH, WIDTH, WORDS = 30, 10, 6, 40, 128, 200


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(tokens)))


class PolicyTrainer:
    """Train a policy by the rewards of what it generates, with the engine on the main process."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world = rank, dist.get_world_size()
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Policy())
        self.engine = Policy() if rank == 0 else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def generate(self, prompts: torch.Tensor) -> torch.Tensor:
        """Return prompts of shape (batch, PROMPT) with their completions, of shape (batch, LENGTH)."""
        self.engine.load_state_dict(self.model.module.state_dict())
        tokens = prompts
        with torch.no_grad():
            while tokens.shape[1] < LENGTH:
                logits = self.engine(tokens)[:, -1]
                tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return tokens

    def completions(self, prompts: torch.Tensor) -> torch.Tensor:
        all_prompts = [torch.empty_like(prompts) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(prompts, all_prompts, dst=0)
        found = torch.empty(self.world * PROMPTS, LENGTH, dtype=torch.long)
        if self.rank == 0:
            found = self.generate(torch.cat(all_prompts))
        dist.broadcast(found, src=0)
        return found[PROMPTS * self.rank : PROMPTS * (self.rank + 1)]

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(379 * number + self.rank)
        tokens = self.completions(torch.randint(0, WORDS, (PROMPTS, PROMPT), generator=generator))
        rewards = (tokens % 2 == 0).float().mean(1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        logits = self.model(tokens[:, :-1])
        losses = cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)
        loss = (advantages * losses).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = PolicyTrainer(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for number in range(STEPS):
            print(trainer.step(number).hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
