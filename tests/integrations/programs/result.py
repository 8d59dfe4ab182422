"""Result of a training: a digest of its weights, and its losses, bit for bit."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch


def write_result(folder: str, model: torch.nn.Module, losses: Iterable[float]) -> None:
    weights = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        weights.update(name.encode() + value.detach().contiguous().view(torch.uint8).numpy().tobytes())
    result = {"weights": weights.hexdigest(), "losses": [float(loss).hex() for loss in losses]}
    Path(folder, f"result-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(result))
