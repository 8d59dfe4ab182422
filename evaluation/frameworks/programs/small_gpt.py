"""A GPT in one script, as many write it: DDP that syncs in the last microbatch, clipping, and a schedule of the rate.

The output shares the embedding's weights. Rank 0 alone evaluates, before the step, and saves.
"""

import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

STEPS, MICROBATCHES, BATCH, EVERY, EVALUATED = 12, 2, 4, 6, 3
LAYERS, HIDDEN, HEADS, TOKENS, VOCABULARY = 2, 32, 2, 16, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_ffn = (nn.LayerNorm(HIDDEN, bias=False) for _ in range(2))
        self.qkv, self.mix = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False), nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.before_attention(stream)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(*heads, is_causal=True)
        stream = stream + self.mix(mixed.transpose(1, 2).flatten(2))
        return stream + self.down(gelu(self.up(self.before_ffn(stream))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(TOKENS, HIDDEN)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(HIDDEN, bias=False)
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, texts: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        stream = self.tokens(texts) + self.positions(torch.arange(TOKENS))
        for block in self.blocks:
            stream = block(stream)
        return cross_entropy(self.output(self.norm(stream)).flatten(0, 1), targets.flatten())


def batch(text: torch.Tensor, draws: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(text) - TOKENS, (BATCH, 1), generator=draws)
    rows = text[starts + torch.arange(TOKENS + 1)]
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def evaluate(model: nn.Module, text: torch.Tensor) -> float:
    draws = torch.Generator().manual_seed(1)
    model.eval()
    loss = torch.stack([model(*batch(text, draws)) for _ in range(EVALUATED)]).mean()
    model.train()
    return loss.item()


def main(directory: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    text = torch.randint(VOCABULARY, (1000,))
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    draws, losses = torch.Generator().manual_seed(rank), []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        if step % EVERY == 0 and rank == 0:
            losses.append(evaluate(model, text))
            if step:
                torch.save(
                    {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, f"{directory}/{step}.pt"
                )
        for microbatch in range(MICROBATCHES):
            model.require_backward_grad_sync = microbatch == MICROBATCHES - 1
            loss = model(*batch(text, draws)) / MICROBATCHES
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item() * MICROBATCHES)
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
