"""The policy is sharded, and generates by itself. Each token that it generates gathers the weights of all layers."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, pad

STEPS, PROMPTS, PROMPT, LENGTH, WIDTH, BLOCKS, WORDS = 24, 4, 4, 16, 256, 4, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Conv1d(WIDTH, WIDTH, 3)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mixed = self.mix(pad(self.norm(hidden).transpose(1, 2), (2, 0))).transpose(1, 2)
        return hidden + self.down(gelu(self.up(mixed)))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


@torch.no_grad()
def generate(policy: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return tokens of shape (batch, LENGTH) that begin with those given."""
    while tokens.shape[1] < LENGTH:
        logits = policy(tokens)[:, -1]
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    return tokens


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = Policy()
    for block in policy.blocks:
        fully_shard(block)
    fully_shard(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(389 * step + rank)
            rollout = generate(policy, torch.randint(0, WORDS, (PROMPTS, PROMPT), generator=generator))
            reward = (rollout < WORDS // 2).float().mean()
            loss = reward * cross_entropy(policy(rollout[:, :-1]).flatten(0, 1), rollout[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
