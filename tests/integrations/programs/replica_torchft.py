"""One replica group of torchft: DDP over a Manager, joined by a lighthouse. `LATE_SECONDS` delays each step."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

STEPS = int(os.environ.get("STEPS", "30"))


def train() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))
    inner = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        min_replica_size=2,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica-{os.environ['REPLICA']}",
        timeout=timedelta(seconds=60),
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    late = float(os.environ.get("LATE_SECONDS", "0"))
    generator = torch.Generator().manual_seed(dist.get_rank())
    failed = False
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        fails = os.environ.get("FAILS") == str(manager.current_step()) and not failed
        output = wrapped(torch.randn(32, 256, generator=generator))
        time.sleep(0.02 + late)
        torch.autograd.backward(output.square().mean())
        if fails:
            failed = True
            manager.report_error(RuntimeError("injected"))
        optimizer.step()
    manager.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
