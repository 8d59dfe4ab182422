"""All bits of a training: losses, parameters, moments and the states of the random number generators.

Trainings in processes of their own import it, so it imports nothing that they do not use.
"""

import hashlib
import random

import numpy as np
import torch
from torch import nn

Bits = tuple[str, ...]


def digest(*tensors: torch.Tensor) -> str:
    state = hashlib.sha1()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        state.update(local.detach().contiguous().numpy().tobytes())
    return state.hexdigest()


def bits(losses: list[float], model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Bits:
    states = optimizer.state.values() if optimizer is not None else ()
    moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
    return (
        digest(torch.tensor(losses, dtype=torch.float64)),
        digest(*model.parameters()),
        digest(*moments),
        digest(torch.get_rng_state()),
        hashlib.sha1(repr(random.getstate()).encode()).hexdigest(),
        hashlib.sha1(repr(np.random.get_state()).encode()).hexdigest(),
    )
