"""DeepSpeed's engine at the given ZeRO stage, with accumulation and checkpoints."""

import sys
from pathlib import Path

import deepspeed
import torch
from torch import nn

STEPS, MICROBATCHES, BATCH, HIDDEN, EVERY = 12, 2, 8, 32, 6
GATHER_EACH_TIME = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}
"""By default ZeRO-3 keeps weights as small as these on every rank."""


def main(directory: str, stage: str) -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.ReLU(), nn.Linear(4 * HIDDEN, HIDDEN))
    settings = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": MICROBATCHES,
        "zero_optimization": {"stage": int(stage), **(GATHER_EACH_TIME if stage == "3" else {})},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    data, losses = torch.Generator().manual_seed(engine.global_rank), []
    for number in range(1, STEPS * MICROBATCHES + 1):
        inputs = torch.randn(BATCH, HIDDEN, generator=data)
        loss = engine(inputs).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if number % (EVERY * MICROBATCHES) == 0:
            engine.save_checkpoint(f"{directory}/saved", tag=str(number))
    Path(directory, f"losses-{engine.global_rank}").write_text("\n".join(map(float.hex, losses)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
