"""Twelve steps of torchtitan's Trainer with FSDP on gloo: 4 sequences of 16 tokens on each rank.

Arguments: a folder for results; `plain`, or `recorded` for the snippet of the docs.
"""

import sys
from pathlib import Path

import torch
from result import write_result
from snippets import snippet

sys.path.append(str(Path(__file__).parents[2] / "frameworks" / "packages"))
from torchtitan_llama import losses, trainer_of

folder, mode, _ = sys.argv[1:]
trainer = trainer_of(folder, "fsdp")
if mode == "plain":
    trainer.train()
    trainer.close()
else:
    exec(snippet("torchtitan"))
shards = [torch.nn.Parameter(weight.detach().to_local()) for weight in trainer.model_parts[0].parameters()]
write_result(folder, torch.nn.ParameterList(shards), losses)
torch.distributed.destroy_process_group()
