"""Six steps of DeepSpeed's engine with ZeRO stage 1 on gloo: 4 sequences of 8 tokens on each rank.

Arguments: a folder for results; `plain`, or `recorded` for the snippet of the docs.
"""

import sys

import deepspeed
import torch
from result import write_result
from snippets import snippet

folder, mode, _ = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32, bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
rows = torch.randint(0, 32, (48, 8), generator=torch.Generator().manual_seed(1))
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: nothing is compiled
deepspeed.init_distributed(dist_backend="gloo")
settings = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "csv_monitor": {"enabled": True, "output_path": folder, "job_name": "csv"},
}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
if mode != "plain":
    exec(snippet("DeepSpeed"))
losses: list[float] = []
for batch in rows.view(6, 2, 4, 8)[:, torch.distributed.get_rank()]:
    loss = torch.nn.functional.cross_entropy(engine(batch).flatten(0, 1), batch.flatten())
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
write_result(folder, model, losses)
