"""The generators of this rank from which training draws: torch's on the CPU and on the rank's GPU."""

import hashlib

import torch
from torch import Tensor

from traincope.engine.config import Config
from traincope.engine.ranks.mesh import BATCH_AXES, Layout


def seed_generators(config: Config, *, layout: Layout, step: int) -> None:
    """Seed for the steps after `step`. Ranks that hold different activations draw different numbers.

    Ranks of a `tp` group without sequence parallelism hold the same activations, so they draw the same numbers.
    """
    axes = ("pp", *BATCH_AXES, "cp", *(("tp",) if config.parallel.sequence_parallel else ()))
    place = [f"{axis}={layout.coordinate(axis)}" for axis in axes]
    digest = hashlib.sha256(f"{config.train.seed}:{step}:{place}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Kind of device -> state of its generator, uint8 on the CPU."""
    states = {"cpu": torch.get_rng_state()}
    return states if device.type == "cpu" else states | {device.type: torch.cuda.get_rng_state(device)}


def set_generator_states(states: dict[str, Tensor], *, device: torch.device) -> None:
    """Set what `generator_states` returned."""
    torch.set_rng_state(states["cpu"])
    if device.type in states and device.type != "cpu":
        torch.cuda.set_rng_state(states[device.type], device)
