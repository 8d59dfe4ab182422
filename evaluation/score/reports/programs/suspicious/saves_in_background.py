"""Every 20 steps all ranks save in the background, through a group of their own, while the training goes on."""

import os
from concurrent.futures import Future

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

STEPS, EVERY, WIDTH = 70, 20, 384


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    saving = dist.new_group(backend="gloo", group_desc="checkpoints")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(5)])
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pending: Future | None = None
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            inputs = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(107 * step + rank))
            loss = mse_loss(model(inputs), inputs.flip(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % EVERY == 0:
                if pending is not None:
                    pending.result()
                weights, moments = get_state_dict(model, optimizer)
                state = {"model": weights, "optimizer": moments}
                pending = dcp.async_save(state, checkpoint_id=f"checkpoint-{step}", process_group=saving)
    if pending is not None:
        pending.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
