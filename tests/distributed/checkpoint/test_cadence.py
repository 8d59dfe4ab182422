"""`cadence = "auto"` on real ranks: all save at the same steps, and these follow from the chosen intervals."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.checkpoint.interrupted import STEPS
from tests.distributed.checkpoint.saving import save_if_due
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from traincope.engine.config import CheckpointConfig, ParallelConfig


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_saved_steps_follow_from_the_chosen_intervals(
    two_ranks: Pool, text: str, tmp_path: Path, asynchronous: bool
) -> None:
    """Failures are expected so often that saves come soon; the first one comes after `every` steps."""
    table = CheckpointConfig(every=2, cadence="auto", mtbf_hours=1e-5, keep=STEPS, asynchronous=asynchronous)
    config = replace(small_config(text, ParallelConfig(dp=2)), checkpoint=table)
    chosen, other = two_ranks.run(save_if_due, config, tmp_path / "checkpoints")
    assert chosen == other
    expected, due = [], 2
    for step in range(1, STEPS + 1):
        if step in (due, STEPS):
            expected.append(step)
            due = step + dict(chosen)[step].steps
    assert [step for step, _ in chosen] == expected
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == [
        f"step-{n:08d}" for n in expected
    ]
    for _, interval in chosen:
        assert interval.save_seconds > 0
        assert interval.step_seconds > 0
