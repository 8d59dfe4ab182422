"""Twelve steps of DDP on two workers of Ray Train, each of which reports its losses.

Arguments: a folder for results; `plain`, or `recorded` for the snippet of the docs.
"""

import sys
from pathlib import Path

from ray.cloudpickle import register_pickle_by_value
from ray.train import RunConfig
from ray.train.torch import TorchTrainer
from snippets import snippet

sys.path.append(str(Path(__file__).parents[2] / "frameworks" / "packages"))
import ray_ddp
from ray_ddp import train

folder, mode, _ = sys.argv[1:]
register_pickle_by_value(ray_ddp)  # the workers do not find its folder
ray_ddp.begin()
settings, run_settings = ray_ddp.settings_of(folder)
if mode == "plain":
    TorchTrainer(train, **settings, run_config=RunConfig(**run_settings)).fit()
else:
    exec(snippet("Ray Train"))
