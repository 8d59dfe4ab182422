"""Errors that end a training, or a thread of it, are shown as without traincope."""

import os
import re
import subprocess
import sys
from pathlib import Path

TRAINING = """
import sys, threading
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

class Broken:
    def __len__(self): return 4
    def __getitem__(self, at): raise KeyError(at)

def loads():
    for batch in DataLoader(Broken()):
        pass

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
thread = threading.Thread(target=loads)
thread.start()
thread.join()
try:
    model(torch.ones(1, 3))
except RuntimeError as error:
    try:
        dist.all_gather_object([], error, group=3)
    except Exception as later:
        torch.optim.SGD(model.parameters(), lr=-1)
"""
TORCHS_WRAPPER = r".* in _wrapped_call_impl\n.*\n.*\^\n"
"""Lines of the call that the recorder takes the place of, so that the training's stack is no deeper."""


def shown(script: Path, *command: str) -> str:
    ended = subprocess.run(
        [*command, sys.executable, script], check=False, capture_output=True, text=True, timeout=150, cwd=script.parent
    )
    assert ended.returncode == 1
    return ended.stderr


def test_an_error_and_those_behind_it_are_shown_without_our_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    bare = re.sub(TORCHS_WRAPPER, "", shown(script))
    assert bare.count("Traceback (most recent call last)") == 5
    traincope = os.path.join(os.path.dirname(sys.executable), "traincope")
    recorded = shown(script, traincope, "run", "--out", str(tmp_path / "run"), "--")
    assert recorded.startswith(bare)
