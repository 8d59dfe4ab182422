"""State that only one rank has and no other layout can use: its generators, and the errors that PowerSGD keeps.

It is written as named arrays. `torch.save` would look like a checkpoint of its own to whoever observes the training.
"""

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from traincope.engine.ranks.generators import generator_states, set_generator_states
from traincope.engine.sharing.data_parallel import Replicas
from traincope.engine.trainer import Trainer

Arrays = Mapping[str, NDArray[Any]]

BY_BUCKET = ("error_dict", "p_memory_dict", "q_memory_dict")
"""PowerSGD's tensors by number of the bucket."""
IN_GENERATOR = ("pos", "has_gauss", "gauss")
"""Numbers of numpy's generator next to its key."""


def rank_state(trainer: Trainer) -> bytes:
    """The state as numpy saves named arrays."""
    arrays: dict[str, Any] = {
        f"generator.{kind}": state.numpy() for kind, state in generator_states(trainer.device).items()
    }
    for stage, factors in _compression(trainer):
        arrays |= {f"stage.{stage}.{name}": array for name, array in _factors(factors)}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def set_rank_state(trainer: Trainer, saved: bytes) -> None:
    """Restore the state of the same rank in the same layout. Nothing may draw random numbers between it and a step."""
    with np.load(io.BytesIO(saved), allow_pickle=False) as arrays:
        generators = {kind: torch.from_numpy(state) for kind, state in _below("generator.", arrays).items()}
        set_generator_states(generators, device=trainer.device)
        for stage, factors in _compression(trainer):
            _set_factors(factors, _below(f"stage.{stage}.", arrays), device=trainer.device)


def forget_errors(trainer: Trainer) -> None:
    """Begin without PowerSGD's errors: another layout wrote the checkpoint, and those in memory are of later steps."""
    for _, factors in _compression(trainer):
        for name in BY_BUCKET:
            getattr(factors, name).clear()


def _compression(trainer: Trainer) -> Iterator[tuple[int, PowerSGDState]]:
    """PowerSGD's state of each stage of this rank."""
    for stage, module in trainer.modules.items():
        if isinstance(module, Replicas) and module.factors is not None:
            yield stage, module.factors


def _factors(state: PowerSGDState) -> Iterator[tuple[str, NDArray[Any]]]:
    _, key, *rest = state.rng.get_state(legacy=True)
    yield "iter", np.array(state.iter)
    yield "key", np.asarray(key)
    yield from ((name, np.array(value)) for name, value in zip(IN_GENERATOR, rest, strict=True))
    for name in BY_BUCKET:
        for bucket, tensor in getattr(state, name).items():
            yield f"{name}.{bucket}", tensor.cpu().numpy()


def _set_factors(state: PowerSGDState, saved: Arrays, *, device: torch.device) -> None:
    state.iter = saved["iter"].item()
    state.rng.set_state(("MT19937", saved["key"], *(saved[name].item() for name in IN_GENERATOR)))
    for name in BY_BUCKET:
        tensors = _below(f"{name}.", saved)
        setattr(state, name, {int(bucket): torch.from_numpy(array).to(device) for bucket, array in tensors.items()})


def _below(prefix: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays whose name begins with the prefix, by the rest of their name."""
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
