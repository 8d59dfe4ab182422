"""The configuration of a training: frozen values that are checked when they are created.

Each table of a configuration file is one of these classes, and each key is one of their fields. A value that cannot
work raises ConfigError here, before any process starts. Nothing here needs torch.
"""

from traincope.engine.config.checkpoint import CheckpointConfig
from traincope.engine.config.config import Config
from traincope.engine.config.data import DataConfig
from traincope.engine.config.experts import ExpertsConfig
from traincope.engine.config.model import VOCABULARY, ModelConfig
from traincope.engine.config.parallel import AXES, ParallelConfig
from traincope.engine.config.sharing import DDPConfig, FSDPConfig, OffloadConfig
from traincope.engine.config.stability import StabilityConfig
from traincope.engine.config.train import OptimizerConfig, ScalingConfig, TrainConfig

__all__ = [
    "AXES",
    "VOCABULARY",
    "CheckpointConfig",
    "Config",
    "DDPConfig",
    "DataConfig",
    "ExpertsConfig",
    "FSDPConfig",
    "ModelConfig",
    "OffloadConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "ScalingConfig",
    "StabilityConfig",
    "TrainConfig",
]
