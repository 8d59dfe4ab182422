"""A few of the trainings that `make score-corruption` draws, the coverage of ZeRO-1, and unchanged losses."""

from pathlib import Path

import pytest
import torch
from torch import nn

import traincope
from evaluation.score.corrupting import Case, train
from evaluation.score.corruption import Outcome, run_cases
from tests.distributed.ranks.pool import Pool
from traincope import analyze, open_run
from traincope.engine.ranks.torch_private import zero_redundancy_optimizer

FLIP = {"steps": 5, "every": 2, "after_step": 1, "tensor": 0.5, "element": 0.5, "bit": 9}


@pytest.mark.parametrize("layouts", [("ddp", "tp"), pytest.param(("hsdp", "fsdp"), marks=pytest.mark.sweep)])
def test_flipped_bits_are_named_and_a_healthy_training_has_no_alarm(
    four_ranks: Pool, tmp_path: Path, layouts: tuple[str, ...]
) -> None:
    every = [
        Case(name="ddp", layout="ddp", ranks=4, dtype="bfloat16", rank=2, state="exp_avg", **FLIP),  # type: ignore[arg-type]
        Case(name="hsdp", layout="hsdp", ranks=4, dtype="float32", rank=1, **FLIP),  # type: ignore[arg-type]
        Case(name="fsdp", layout="fsdp", ranks=4, dtype="float32", rank=3, **{**FLIP, "every": 1}),  # type: ignore[arg-type]
        Case(name="tp", layout="tp", ranks=4, dtype="float32", rank=None, **FLIP),  # type: ignore[arg-type]
    ]
    outcomes = list(run_cases([case for case in every if case.name in layouts], tmp_path, four_ranks))
    assert all(outcome.is_right for outcome in outcomes), outcomes
    named = {outcome.case.name: [fault.ranks for fault in outcome.alarms] for outcome in outcomes}
    truth = {"ddp": [(2,)], "hsdp": [(1, 3)], "fsdp": [(3,)], "tp": []}
    assert named == {name: truth[name] for name in layouts}


def test_an_alarm_of_a_healthy_training_and_a_wrong_rank_are_counted_as_wrong(four_ranks: Pool, tmp_path: Path) -> None:
    case = Case(name="ddp", layout="ddp", ranks=4, dtype="float32", rank=2, **FLIP)  # type: ignore[arg-type]
    (outcome,) = run_cases([case], tmp_path, four_ranks)
    assert outcome.is_right
    assert not Outcome(
        Case(name="ddp", layout="ddp", ranks=4, dtype="float32", steps=5, every=2), outcome.faults
    ).is_right
    other = Case(name="ddp", layout="ddp", ranks=4, dtype="float32", rank=1, **FLIP)  # type: ignore[arg-type]
    assert not Outcome(other, outcome.faults).is_right
    assert not Outcome(case, ()).is_right


def test_checks_change_no_loss_of_ranks_that_share_parameters(four_ranks: Pool, tmp_path: Path) -> None:
    losses = [
        four_ranks.run(
            train, Case(name=f"every-{every}", layout="hsdp", ranks=4, dtype="float32", steps=4, every=every), tmp_path
        )
        for every in (0, 1)
    ]
    assert losses[0] == losses[1]


def train_zero(out: Path) -> None:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = zero_redundancy_optimizer()(model.parameters(), torch.optim.AdamW, lr=1e-3)
    with traincope.run(out, agent=False, corruption_check_steps=1) as run:
        for _ in range(3):
            model(torch.randn(2, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()


def test_zero_1_has_replicas_of_parameters_and_shards_of_the_optimizer_state(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(train_zero, tmp_path)
    analysis = analyze(open_run(tmp_path))
    checks = analysis.state_checks
    assert checks is not None
    num_parameters, num_tensors = 2 * (8 * 8 + 8), 4
    assert checks.parameters.num_bytes == 2 * 4 * num_parameters
    assert (checks.parameters.voted_ratio, checks.parameters.held_ratio) == (1.0, 1.0)
    assert checks.optimizer_state.num_bytes == 2 * 4 * num_parameters + 4 * num_tensors
    assert (checks.optimizer_state.voted_ratio, checks.optimizer_state.held_ratio) == (0.0, 1.0)
    assert not [fault for fault in analysis.faults if fault.is_fault]
