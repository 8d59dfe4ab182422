"""The fused attention is not installed on the host of rank 1, which computes the same sums block by block in Python."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, LENGTH, HEADS, WIDTH, WORDS, BLOCK = 80, 2, 128, 4, 64, 256, 8


def has_fused_kernel() -> bool:
    """Tell whether the import of the kernel works on this host."""
    return os.environ["RANK"] != "1"


def attend_in_blocks(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention of shape (batch, heads, length, width), one head and one block of queries at a time."""
    found = []
    for sample in range(queries.shape[0]):
        heads = []
        for head in range(queries.shape[1]):
            rows = []
            for start in range(0, LENGTH, BLOCK):
                block = queries[sample, head, start : start + BLOCK]
                scores = block @ keys[sample, head, : start + BLOCK].T / queries.shape[-1] ** 0.5
                mask = torch.ones_like(scores, dtype=torch.bool).triu(start + 1)
                rows.append(scores.masked_fill(mask, float("-inf")).softmax(-1) @ values[sample, head, : start + BLOCK])
            heads.append(torch.cat(rows))
        found.append(torch.stack(heads))
    return torch.stack(found)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused = has_fused_kernel()
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        parts = self.inward(hidden).view(*hidden.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*parts, is_causal=True) if self.fused else attend_in_blocks(*parts)
        return hidden + self.outward(attended.transpose(1, 2).flatten(2))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(Attention(), nn.LayerNorm(WIDTH)) for _ in range(3)]
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            tokens = torch.randint(
                0, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(383 * step + rank)
            )
            loss = cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
