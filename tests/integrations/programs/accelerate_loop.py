"""Six steps of a loop with Accelerate: 4 sequences of 8 tokens on each rank.

Arguments: a folder for results; `plain`, or `recorded` for the snippet of the docs; a tracker, or `none`.
"""

import os
import sys

import torch
from accelerate import Accelerator
from result import write_result
from snippets import snippet

import traincope

folder, mode, tracker = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32, bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
rows = torch.randint(0, 32, (48, 8), generator=torch.Generator().manual_seed(1))
loader = torch.utils.data.DataLoader(rows, batch_size=4)
losses: list[float] = []


def train(accelerator: Accelerator, model: torch.nn.Module, optimizer: object, loader: object) -> None:
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        accelerator.log({"loss": loss.item(), "step_tokens": 1}, step=len(losses))
        traincope.log(step_tokens=batch.numel())


os.environ["ACCELERATE_USE_CPU"] = "true"
trackers = [] if tracker == "none" else [tracker]
if mode == "plain":
    accelerator = Accelerator(log_with=trackers or None, project_dir=folder)
    accelerator.init_trackers("project")
    train(accelerator, model, optimizer, loader)
    accelerator.end_training()
else:
    exec(snippet("Accelerate"))
write_result(folder, model, losses)
