"""Accelerate: a model, an optimizer and a DataLoader that it prepares, with accumulation and a checkpoint."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, MICROBATCHES, BATCH, INPUTS, HIDDEN, OUTPUTS, EVERY = 12, 2, 8, 32, 64, 16, 6


def main(directory: str) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICROBATCHES)
    count = STEPS * MICROBATCHES * BATCH * accelerator.num_processes
    data = TensorDataset(torch.randn(count, INPUTS), torch.randn(count, OUTPUTS))
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=BATCH))
    losses = []
    for number, (inputs, targets) in enumerate(batches, start=1):
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if number % (EVERY * MICROBATCHES) == 0:
            accelerator.save_state(f"{directory}/{number}")
    Path(directory, f"losses-{accelerator.process_index}").write_text("\n".join(map(float.hex, losses)))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
