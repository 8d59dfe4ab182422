"""Recorded trainings in fp16 and fp8: skipped steps are faults of all ranks, FLOPs have the type that ran."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import traincope
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.analysis.faults.faults import FaultKind
from traincope.cli.launch.worker import settings
from traincope.engine.config import Config, ParallelConfig, ScalingConfig
from traincope.engine.trainer import Trainer

STEPS = 5


def record(config: Config, directory: str) -> list[int]:
    """Train and record. Returns the numbers of the steps that were skipped."""
    with traincope.run(directory, budget=None, agent=False) as run:
        run.describe(**settings(config), peak_flops={"float32": 1e9, "bfloat16": 2e9})
        trainer = Trainer(config, device=torch.device("cpu"))
        skipped = []
        for result in trainer.steps():
            if result.overflowed:
                skipped.append(result.step)
            run.step()
    return skipped


def test_skipped_steps_are_faults_of_all_ranks(two_ranks: Pool, text: str, tmp_path: Path) -> None:
    """A scale of 2^24 overflows, and halves in each skipped step until it does not."""
    config = small_config(text, ParallelConfig(pp=2, microbatches=4), precision="fp16", steps=2 * STEPS)
    config = replace(config, scaling=ScalingConfig(initial=2.0**24))
    skipped = two_ranks.run(record, config, str(tmp_path / "run"))
    assert skipped[0] == skipped[1]
    assert 0 < len(skipped[0]) < 2 * STEPS
    faults = traincope.analyze(traincope.open_run(tmp_path / "run")).faults
    found = [fault for fault in faults if fault.kind is FaultKind.SKIPPED_STEP]
    assert [fault.step for fault in found] == [step - 1 for step in skipped[0]]
    assert all(fault.ranks == (0, 1) for fault in found)


LAYOUTS = {
    "ddp": ParallelConfig(dp=2),
    "zb-v": ParallelConfig(pp=2, schedule="zb-v", microbatches=4),
}


@pytest.mark.parametrize("layout", swept(LAYOUTS, but=["zb-v"]))
def test_flops_of_fp8_are_counted_in_the_type_that_ran(two_ranks: Pool, text: str, tmp_path: Path, layout: str) -> None:
    """On a CPU the blocks' linear layers multiply in fp32, attention and the output in bf16.

    If backward is split, each of its products still runs once.
    """
    config = small_config(text, LAYOUTS[layout], precision="fp8", steps=STEPS)
    two_ranks.run(record, config, str(tmp_path / "run"))
    timeline = traincope.open_run(tmp_path / "run")
    model, tokens = config.model, config.tokens_per_step
    block = 2 * model.hidden**2 + 2 * model.hidden * model.hidden // 2 + 3 * model.hidden * model.ffn
    linear = 6 * tokens * model.layers * block
    output = 6 * tokens * model.hidden * model.vocabulary
    attention = 3 * 2 * 2 * tokens * model.sequence * model.hidden * model.layers
    flops: Counter[str] = Counter()
    for rank in timeline.ranks:
        counted = counted_flops(rank)
        assert counted is not None
        flops.update(counted.model(causal_half=True))
    assert flops == {"float32": linear, "bfloat16": output + attention / 2}
    ideal = traincope.analyze(timeline).utilization.ratios.ideal_ns
    assert ideal["float32"] == pytest.approx(linear)
    assert ideal["bfloat16"] == pytest.approx((output + attention / 2) / 2)
