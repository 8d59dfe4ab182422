"""Six steps of DDP on two gloo ranks, with the calls of torchtitan's structured log around their parts.

Arguments: a folder for results; `plain` for torchtitan's own file alone, or `recorded` for the line of the docs too.
"""

import os
import sys

import torch
from result import write_result
from torch.distributed import destroy_process_group, init_process_group
from torchtitan.observability import structured_logger as sl

folder, mode, _ = sys.argv[1:]
STEPS, MICROBATCHES = 6, 2
if mode != "plain":
    os.environ["TITAN_STRUCT_LOGGER_HANDLERS"] = (
        "torchtitan.observability.structured_logger.jsonl_handler.register_jsonl_handler,"
        "traincope.integrations.torchtitan_log"
    )
sl.init_structured_logger(source="training", output_dir=folder)
init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = iter(torch.utils.data.DataLoader(torch.randn(STEPS * MICROBATCHES * 4, 16), batch_size=4))
losses: list[float] = []


@sl.log_trace_span("fwd_bwd")
def pass_through(rows: torch.Tensor) -> None:
    loss = model(rows).square().mean()
    loss.backward()
    losses.append(loss.item())


for step in range(1, STEPS + 1):
    sl.set_step(step)
    batches = [next(loader) for _ in range(MICROBATCHES)]
    sl.log_trace_scalar({"local_valid_tokens": step})
    for rows in batches:
        pass_through(rows)
    with sl.log_trace_span("optim"):
        optimizer.step()
        optimizer.zero_grad()
sl.log_trace_instant("training_end")
try:
    with sl.log_trace_span("eval"):
        raise ValueError("the end of the data")
except ValueError:
    pass
write_result(folder, model.module, losses)
destroy_process_group()
