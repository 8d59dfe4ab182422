"""Results of drift: distances, shares and JSON against values that are computed by hand; counts of lost numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from traincope.cli.launch.drift_worker import in_formats
from traincope.engine.config import Config, DDPConfig, ParallelConfig, ScalingConfig
from traincope.engine.config.load import load_config
from traincope.engine.precision.drift import Drift, FormatDrift, Range, loss_distance
from traincope.engine.precision.formats import FORMATS
from traincope.engine.precision.observed import Observer
from traincope.engine.precision.scaled_products import ScaledLinear

DEFAULT = Path(__file__).parents[3] / "traincope" / "cli" / "commands" / "drift.toml"


def test_the_distance_of_losses_is_a_mean_and_unknown_after_an_overflow() -> None:
    assert loss_distance((5.0, 4.0), (5.0, 4.5)) == 0.25
    assert loss_distance((5.0, float("inf")), (5.0, 4.5)) is None
    assert loss_distance((5.0, float("nan")), (5.0, 4.5)) is None


def test_results_pass_through_json() -> None:
    numbers = Range(numbers=8, saturated=2, underflowed=None)
    assert (numbers.saturated_ratio, numbers.underflowed_ratio) == (0.25, None)
    fp32 = FormatDrift(precision="fp32", losses=(5.0,), loss_distance=0.0, layers={"output": {"input": numbers}})
    drift = Drift(steps=1, formats=(fp32,), refused={"fp8": "a reason"})
    assert Drift.read(json.loads(json.dumps(drift.document()))) == drift


def test_saturated_and_underflowed_numbers_are_counted() -> None:
    """With a history of 448 the scale is 1. Half of E4M3's smallest number 2^-9 rounds to zero; 449 saturates."""
    layer = ScaledLinear(nn.Linear(4, 1, bias=False), FORMATS["fp8"], steps=1, device=torch.device("cpu"))
    layer.operands["input"].history.fill_(448.0)
    observer = Observer(FORMATS["fp8"])
    observer.watch({0: nn.ModuleDict({"layer": layer})})
    layer(torch.tensor([[449.0, 2.0**-10, 0.0, float("inf")]])).sum().backward()
    assert observer.counts["layer"]["input"] == [4, 2, 1]
    assert observer.counts["layer"]["gradient"][:2] == [1, 0]


def test_a_saturated_number_does_not_exist_in_blocks_and_small_ones_underflow_in_their_own_block() -> None:
    """448 has the scale 1, so 2^-10 in its block rounds to zero; in a block of its own it does not."""
    layer = ScaledLinear(nn.Linear(129, 1, bias=False), FORMATS["fp8_block"], steps=1, device=torch.device("cpu"))
    observer = Observer(FORMATS["fp8_block"])
    observer.watch({0: nn.ModuleDict({"layer": layer})})
    x = torch.zeros(1, 129)
    x[0, 0], x[0, 1], x[0, 128] = 448.0, 2.0**-10, 2.0**-10
    layer(x).sum().backward()
    assert observer.counts["layer"]["input"] == [129, 0, 1]


def test_underflow_of_numbers_that_arrive_rounded_is_unknown() -> None:
    observer = Observer(FORMATS["fp16"])
    linear = nn.Linear(2, 1, bias=False)
    observer.watch({0: nn.ModuleDict({"layer": linear})})
    with torch.autocast("cpu", dtype=torch.float16):
        linear(torch.tensor([[1e-9, 1.0]])).sum().backward()
    assert observer.counts["layer"]["input"] == [2, 0, 1]
    assert observer.counts["layer"]["gradient"] == [1, 0, None]


def test_formats_that_a_configuration_refuses_are_named() -> None:
    config = Config(parallel=ParallelConfig(dp=2), ddp=DDPConfig(compression="powersgd"))
    allowed, refused = in_formats(config)
    assert list(allowed) == ["fp32", "bf16", "fp8", "fp8_block"]
    assert refused["fp16"].startswith("train.precision = 'fp16' cannot be combined with ddp.compression = 'powersgd'")


def test_the_default_configuration_trains_in_every_format() -> None:
    config = load_config(DEFAULT)
    assert list(in_formats(config)[0]) == ["fp32", "bf16", "fp16", "fp8", "fp8_block"]
    in_fp8 = replace(config, train=replace(config.train, precision="fp8"), scaling=ScalingConfig(history=3))
    assert [each.scaling.history for each in in_formats(in_fp8)[0].values()] == [16, 16, 16, 3, 16]


@pytest.mark.sweep
def test_the_command_compares_real_trainings(tmp_path: Path) -> None:
    from tests.cli.test_commands import run

    shown = run("drift", "--steps", "6", "--format", "json", "-o", str(tmp_path / "drift.json"))
    assert shown.returncode == 0, shown.stderr
    drift = Drift.read(json.loads((tmp_path / "drift.json").read_text()))
    reference, *others = drift.formats
    assert (reference.loss_distance, reference.parameter_distance) == (0.0, 0.0)
    assert [each.precision for each in others] == ["bf16", "fp16", "fp8", "fp8_block"]
    assert all(0 < (each.loss_distance or 0) < 0.05 and 0 < (each.parameter_distance or 0) < 0.5 for each in others)
    numbers = {each.layers["blocks.0.attention.query"]["input"].numbers for each in drift.formats}
    assert numbers == {6 * 8 * 64 * 64}
