"""Policies of stability on two ranks: an injected NaN is skipped on both, and a condition halts both."""

from pathlib import Path

import pytest

import traincope
from tests.cli.launch.test_restarts import CONFIG
from traincope.analysis import FaultKind, analyze
from traincope.cli.launch.injecting import injecting_environment
from traincope.engine.launch import Launch, launch
from traincope.inject import read_truths
from traincope.store.layout import INJECTED_FILE


@pytest.mark.sweep
def test_a_nan_on_one_rank_is_skipped_on_both_and_a_condition_halts(tmp_path: Path) -> None:
    """The gradient of rank 1 is NaN in the fourth step. The first evaluation, after the sixth, ends the training."""
    (tmp_path / "text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
    (tmp_path / "config.toml").write_text(CONFIG.format(text=tmp_path / "text"))
    run, progress = tmp_path / "run", tmp_path / "progress"
    settings = ("stability.not_finite=skip", "stability.halt='held_out_loss > 0.1'", "train.evaluate_every=6")
    overrides = [word for setting in settings for word in ("--set", setting)]
    arguments = (str(tmp_path / "config.toml"), "--out", str(run), "--progress", str(progress), *overrides)
    environment = injecting_environment("nan_gradient@rank=1,step=3", out=run)
    launch(Launch(ranks=2, arguments=arguments, environment=environment))
    analysis = analyze(traincope.open_run(run))
    (injected,) = read_truths(run / INJECTED_FILE)
    (skipped,) = (fault for fault in analysis.faults if fault.kind == FaultKind.SKIPPED_STEP)
    assert (skipped.step, skipped.ranks) == (injected.step, (0, 1))
    assert skipped.what == "the optimizer was not run: the gradient norm is NaN"
    (halted,) = (fault for fault in analysis.faults if fault.what.startswith("halted"))
    assert halted.what == 'halted {"condition": "held_out_loss > 0.1", "step": 6}'
    assert halted.ranks == (0, 1)
    assert analysis.goodput is not None
    assert analysis.goodput.steps_done == 6
