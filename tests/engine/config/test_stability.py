"""The table `[stability]`: conditions that halt, and settings that cannot work."""

import math

import pytest

from traincope.engine.config import CheckpointConfig, Config, DDPConfig, ParallelConfig, StabilityConfig, TrainConfig
from traincope.errors import ConfigError


@pytest.mark.parametrize(
    ("condition", "values", "halts"),
    [
        ("loss > 10", {"loss": 10.5}, True),
        ("loss > 10", {"loss": 10.0}, False),
        ("loss>=1e1", {"loss": 10.0}, True),
        (" held_out_loss < .5 ", {"held_out_loss": 0.4, "loss": 9.0}, True),
        ("grad_norm <= -1", {"grad_norm": 0.0}, False),
        ("loss > 10", {"loss": None, "grad_norm": 11.0}, False),
        ("loss > 10", {"loss": math.nan}, False),
        ("loss > 10", {"loss": math.inf}, True),
        (None, {"loss": 1e9}, False),
    ],
)
def test_a_condition_compares_one_value(condition: str | None, values: dict[str, float | None], halts: bool) -> None:
    assert StabilityConfig(halt=condition).halts(**values) is halts


@pytest.mark.parametrize(
    "text", ["", "loss", "loss > ", "lr > 1", "loss == 1", "loss > x", "loss > 1 or 1", "1 < loss"]
)
def test_a_condition_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="as in 'loss > 10'"):
        StabilityConfig(halt=text)


def test_settings_that_cannot_work_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="PowerSGD"):
        Config(
            parallel=ParallelConfig(dp=2),
            ddp=DDPConfig(compression="powersgd"),
            stability=StabilityConfig(not_finite="skip"),
        )
    with pytest.raises(ConfigError, match=r"add a table \[checkpoint\], or set 'skip'"):
        Config(stability=StabilityConfig(spike="rollback"))
    with pytest.raises(ConfigError, match=r"stability.max_rollbacks = -1 is negative"):
        StabilityConfig(max_rollbacks=-1)
    with pytest.raises(ConfigError, match=r"set train\.evaluate_every"):
        Config(stability=StabilityConfig(halt="held_out_loss > 3"))
    Config(stability=StabilityConfig(halt="held_out_loss > 3"), train=TrainConfig(evaluate_every=2))
    Config(
        parallel=ParallelConfig(dp=2),
        ddp=DDPConfig(compression="powersgd"),
        stability=StabilityConfig(not_finite="rollback"),
        checkpoint=CheckpointConfig(),
    )
