"""The training's settings of NCCL and of torch's flight recorder stay. The recorder needs none of its own."""

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = {
    "TORCH_FR_BUFFER_SIZE": "7",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "NCCL_ALGO": "Ring",
    "NCCL_DEBUG": "WARN",
}

TRAINING = """
import os, sys
import torch
import torch.distributed as dist
import traincope

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def settings():
    return {name: value for name, value in os.environ.items() if name.startswith(("TORCH_", "NCCL_"))}

before, seen = settings(), []
with traincope.run(sys.argv[1], level=3, budget=None):
    model = torch.nn.Linear(4, 1)
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        traincope.step()
        seen.append(settings())
seen.append(settings())
assert all(found == before for found in seen), seen

import json
from torch._C._distributed_c10d import _dump_fr_trace_json
print(len(json.loads(_dump_fr_trace_json())["entries"]), json.dumps(before, sort_keys=True))
"""


def start(directory: Path, settings: dict[str, str]) -> subprocess.Popen[str]:
    """Train with these settings and no other of torch or NCCL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_", "NCCL_"))}
    command = [sys.executable, "-W", "ignore", "-c", TRAINING, str(directory)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**kept, **settings}
    )


def printed(training: subprocess.Popen[str]) -> str:
    """Return how many of 8 collectives the flight recorder keeps, and the settings that the training saw."""
    out, errors = training.communicate(timeout=150)
    assert (training.returncode, errors) == (0, "")
    return out.strip()


def test_settings_of_nccl_and_the_flight_recorder_stay_unchanged(tmp_path: Path) -> None:
    names = (f'"{name}": "{value}"' for name, value in sorted(SETTINGS.items()))
    with_settings, without = start(tmp_path / "set", SETTINGS), start(tmp_path / "not set", {})
    assert printed(with_settings) == f"7 {{{', '.join(names)}}}"
    assert printed(without) == "8 {}"
