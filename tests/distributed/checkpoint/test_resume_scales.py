"""Trainings in fp16 and fp8 continue to the bit: scale of the loss and histories of fp8 are in the checkpoint."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.distributed.checkpoint.interrupted import SAVED, Digests, resumed, uninterrupted
from tests.distributed.checkpoint.test_resume import assert_same, small
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.checkpoint import checkpoints
from traincope.engine.config import Config, ParallelConfig, ScalingConfig

LAYOUTS = {
    "ddp": ParallelConfig(dp=2),
    "fsdp": ParallelConfig(fsdp=2),
    "pipeline": ParallelConfig(pp=2, microbatches=4),
    "tp": ParallelConfig(tp=2),
}
GROWING = ScalingConfig(initial=2.0**22, growth_interval=2)
"""A scale that overflows in the first steps and grows soon after."""


def training(text: str, layout: str, precision: str) -> Config:
    config = small(text, LAYOUTS[layout])
    scaling = GROWING if precision == "fp16" else ScalingConfig(history=2)
    train = replace(config.train, precision=precision)  # type: ignore[arg-type]
    return replace(config, train=train, scaling=scaling)


def resumed_without_scales(config: Config, directory: Path) -> Digests:
    def none(tensors: dict[str, object], _saved: object) -> dict[str, object]:
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("scaling.")}

    with patch.object(checkpoints, "_known_scales", none):
        return resumed(config, directory)


@pytest.mark.parametrize(
    "row", swept([f"{layout} {name}" for name in ("fp8", "fp16") for layout in LAYOUTS], but={"fsdp fp8"})
)
def test_a_resumed_training_is_the_uninterrupted_one(two_ranks: Pool, text: str, tmp_path: Path, row: str) -> None:
    layout, _, precision = row.partition(" ")
    config = training(text, layout, precision)
    expected = two_ranks.run(uninterrupted, config, tmp_path)
    assert_same(two_ranks.run(resumed, config, tmp_path), expected)


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["fp8", "fp16"])
def test_it_is_another_one_without_its_scales(two_ranks: Pool, text: str, tmp_path: Path, precision: str) -> None:
    config = training(text, "ddp", precision)
    expected = two_ranks.run(uninterrupted, config, tmp_path)
    for digests, wanted in zip(two_ranks.run(resumed_without_scales, config, tmp_path), expected, strict=True):
        assert all(digests[step] != wanted[step] for step in wanted if step > SAVED)


@pytest.mark.sweep
def test_a_training_may_go_on_in_another_precision(two_ranks: Pool, text: str, tmp_path: Path) -> None:
    """Scales that the checkpoint does not have begin anew."""
    two_ranks.run(uninterrupted, small(text, LAYOUTS["ddp"]), tmp_path)
    for precision in ("fp8", "fp16"):
        (first, second) = two_ranks.run(resumed, training(text, "ddp", precision), tmp_path)
        assert sorted(first) == sorted(second) == list(range(SAVED, 6))
