"""State that only one rank has and no other layout can use: its generators, and the errors that PowerSGD keeps."""

import io
from typing import Any

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from traincope.engine.ranks.generators import generator_states, set_generator_states
from traincope.engine.sharing.data_parallel import Replicas
from traincope.engine.trainer import Trainer

BY_BUCKET = ("error_dict", "p_memory_dict", "q_memory_dict")
"""PowerSGD's tensors by number of the bucket."""


def rank_state(trainer: Trainer) -> bytes:
    """The state as torch saves plain tensors and numbers."""
    factors = {number: _factors(state) for number, state in _compression(trainer).items()}
    file = io.BytesIO()
    torch.save({"generators": generator_states(trainer.device), "factors": factors}, file)
    return file.getvalue()


def set_rank_state(trainer: Trainer, saved: bytes) -> None:
    """Restore the state of the same rank in the same layout. Nothing may draw random numbers between it and a step."""
    state = torch.load(io.BytesIO(saved), weights_only=True, map_location="cpu")
    set_generator_states(state["generators"], device=trainer.device)
    for number, compression in _compression(trainer).items():
        _set_factors(compression, state["factors"][number], device=trainer.device)


def _compression(trainer: Trainer) -> dict[int, PowerSGDState]:
    """PowerSGD's state of each stage of this rank."""
    modules = trainer.modules.items()
    return {
        stage: module.factors
        for stage, module in modules
        if isinstance(module, Replicas) and module.factors is not None
    }


def _factors(state: PowerSGDState) -> dict[str, Any]:
    random: dict[str, Any] = state.rng.get_state(legacy=False)
    keys = torch.from_numpy(random["state"]["key"].astype(np.int64))
    return {
        "iter": state.iter,
        "random": random | {"state": random["state"] | {"key": keys}},
        **{name: dict(getattr(state, name)) for name in BY_BUCKET},
    }


def _set_factors(state: PowerSGDState, saved: dict[str, Any], *, device: torch.device) -> None:
    state.iter = saved["iter"]
    random = saved["random"]
    keys = random["state"]["key"].numpy().astype(np.uint32)
    state.rng.set_state(random | {"state": random["state"] | {"key": keys}})
    for name in BY_BUCKET:
        setattr(state, name, {bucket: tensor.to(device) for bucket, tensor in saved[name].items()})
