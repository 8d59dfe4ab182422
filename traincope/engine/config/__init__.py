"""What to train and how it is laid out: frozen values that are checked as they are made.

Every table of a configuration file is one of these classes, every key one of their fields. A
value that cannot work raises ConfigError here, before any process is launched.
"""

from traincope.engine.config.data import DataConfig
from traincope.engine.config.experts import ExpertsConfig
from traincope.engine.config.model import VOCABULARY, ModelConfig
from traincope.engine.config.parallel import AXES, ParallelConfig
from traincope.engine.config.sharing import DDPConfig, FSDPConfig, OffloadConfig
from traincope.engine.config.train import OptimizerConfig, TrainConfig
from traincope.engine.config.whole import Config

__all__ = [
    "AXES",
    "VOCABULARY",
    "Config",
    "DDPConfig",
    "DataConfig",
    "ExpertsConfig",
    "FSDPConfig",
    "ModelConfig",
    "OffloadConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "TrainConfig",
]
