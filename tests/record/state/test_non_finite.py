"""The first value that is not finite, traced in real trainings on gloo whose bad place is known."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import traincope
from tests.distributed.ranks.pool import Pool
from traincope import analyze, open_run
from traincope.analysis.faults.anomalies.traced_values import Jumps, Seen, upstream
from traincope.analysis.faults.faults import FaultKind
from traincope.record.state.non_finite import MIN_STEPS, OUTPUT, UsualSizes
from traincope.store import read_run

STEPS, BAD_STEP = 5, 3


class Poisoned(nn.Linear):
    """A layer that can return a NaN."""

    bad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * float("nan") if self.bad else y


def train(out: Path, place: str, bad_ranks: tuple[int, ...], *, trace: bool = True) -> list[float]:
    """Train on this rank, with one bad step on some ranks: its `gradient`, its `output` or its `loss`."""
    import torch.distributed as dist

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), Poisoned(8, 8), nn.Linear(8, 1))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    with traincope.run(out, agent=False, trace_non_finite=trace) as run:
        for step in range(STEPS):
            is_bad = step == BAD_STEP and dist.get_rank() in bad_ranks
            layers[1].bad = is_bad and place == "output"
            handle = layers[2].weight.register_hook(lambda gradient: gradient * float("nan"))
            if not (is_bad and place == "gradient"):
                handle.remove()
            loss = model(torch.randn(4, 6, generator=data)).square().mean()
            (loss * float("inf") if is_bad and place == "loss" else loss).backward()
            handle.remove()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            run.step()
    return losses


def not_finite(out: Path) -> list[tuple[tuple[int, ...], int | None, str, str]]:
    faults = analyze(open_run(out)).faults
    return [
        (fault.ranks, fault.step, fault.what, fault.confidence)
        for fault in faults
        if fault.kind is FaultKind.NOT_FINITE
    ]


@pytest.mark.parametrize(
    ("place", "bad_ranks", "what", "confidence"),
    [
        ("gradient", (1,), "the gradient of 2.weight", "high"),
        ("output", (1,), "the output of 1", "high"),
        ("loss", (0,), "the gradient of the output of 2", "high"),
        ("output", (0, 1), "the output of 1", "unknown"),
    ],
)
def test_the_first_rank_layer_and_step_are_named(
    two_ranks: Pool, tmp_path: Path, place: str, bad_ranks: tuple[int, ...], what: str, confidence: str
) -> None:
    """DDP spreads the NaN to the parameters of both ranks at the end of the step."""
    two_ranks.run(train, tmp_path, place, bad_ranks)
    expected = f"{what} is not finite, before all other values of the step"
    assert not_finite(tmp_path) == [(bad_ranks, BAD_STEP, expected, confidence)]


def test_a_healthy_training_has_no_fault_and_the_same_losses(two_ranks: Pool, tmp_path: Path) -> None:
    traced = two_ranks.run(train, tmp_path / "traced", "none", ())
    assert not_finite(tmp_path / "traced") == []
    assert {rank.info.probes["non_finite"] for rank in read_run(tmp_path / "traced").ranks} == {"on"}
    assert traced == two_ranks.run(_untraced, tmp_path / "plain")


def _untraced(out: Path) -> list[float]:
    return train(out, "none", (), trace=False)


JUMP_STEP = 45


def train_until_it_jumps(out: Path, what: str, jump: float) -> None:
    """Train on this rank. At JUMP_STEP rank 1 multiplies a gradient before DDP averages it, or its own batch."""
    import torch.distributed as dist

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    with traincope.run(out, agent=False, trace_non_finite=True) as run:
        for step in range(JUMP_STEP + 3):
            jumps = step == JUMP_STEP and dist.get_rank() == 1
            batch = torch.randn(64, 6, generator=data)
            handle = layers[0].weight.register_hook(lambda gradient: gradient * jump)
            if not (jumps and what == "gradient"):
                handle.remove()
            loss = (model(batch * (jump if jumps and what == "batch" else 1.0)) - 1.0).square().mean()
            loss.backward()
            handle.remove()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss.item())
            run.step()


@pytest.mark.parametrize(
    ("what", "jump", "shown_at", "source"),
    [
        ("gradient", 1e5, JUMP_STEP + 1, "the gradient of 0.weight on rank 1"),
        ("batch", 1e3, JUMP_STEP, "the output of 0 on rank 1"),
    ],
)
def test_a_spike_has_its_first_rank_layer_and_step(
    two_ranks: Pool, tmp_path: Path, what: str, jump: float, shown_at: int, source: str
) -> None:
    """The gradient of one rank moves the parameters of both, so all losses jump in the next step."""
    two_ranks.run(train_until_it_jumps, tmp_path, what, jump)
    spikes = [fault for fault in analyze(open_run(tmp_path)).faults if fault.kind is FaultKind.SPIKE]
    assert min(spike.step or 0 for spike in spikes) == shown_at
    for spike in (spike for spike in spikes if spike.step == shown_at):
        assert re.search(rf"; {source} was [\d,]+ times its usual size first, in step {JUMP_STEP}$", spike.evidence)


@pytest.mark.parametrize("jump", [1.0, 4.0])
def test_without_a_jump_a_training_has_no_trace(two_ranks: Pool, tmp_path: Path, jump: float) -> None:
    """Tails of gradients reach a few times of their usual size."""
    two_ranks.run(train_until_it_jumps, tmp_path, "gradient", jump)
    assert Jumps(open_run(tmp_path)).behind(JUMP_STEP) == ""


def test_a_jump_is_the_first_place_above_eight_times_its_largest_size() -> None:
    usual, places = UsualSizes(), [("a", OUTPUT), ("b", OUTPUT)]
    for step in range(MIN_STEPS):
        assert usual.first_jump(places, np.array([1.0, 1.0 + step / 10])) is None
    assert usual.first_jump(places, np.array([8.0, 20.0])) is None  # 2.5 is the largest of b
    assert usual.first_jump(places, np.array([64.1, 20.1])) == (0, pytest.approx(64.1 / 8))
    assert usual.first_jump([*places, ("c", OUTPUT)], np.array([1e9, 1e9, 1e9])) is None, "other values begin anew"


def seen(rank: int, stage: int, of: str) -> Seen:
    return Seen(rank=rank, stage=stage, step=3, at_ns=rank, place="norm", of=of)


def places(*each: Any) -> Iterator[int]:
    yield from (source.rank for source in upstream(each))


def test_activations_go_to_later_stages_and_gradients_to_earlier_ones() -> None:
    output, gradient = "output", "gradient of the output"
    assert [*places(seen(0, 0, gradient), seen(1, 1, output), seen(2, 2, output))] == [1]
    assert [*places(seen(0, 0, gradient), seen(1, 1, gradient), seen(2, 2, gradient))] == [2]
    assert [*places(seen(0, 0, output), seen(1, 0, output), seen(2, 1, output))] == [0, 1]
