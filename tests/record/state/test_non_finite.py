"""The first value that is not finite, traced in real trainings on gloo whose bad place is known."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import traincope
from tests.distributed.ranks.pool import Pool
from traincope import analyze, open_run
from traincope.analysis.faults.anomalies.not_finite import _Seen, _sources
from traincope.analysis.faults.faults import FaultKind
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


def seen(rank: int, stage: int, of: str) -> _Seen:
    return _Seen(rank=rank, stage=stage, step=3, at_ns=rank, place="norm", of=of)


def places(*each: Any) -> Iterator[int]:
    yield from (source.rank for source in _sources(each))


def test_activations_go_to_later_stages_and_gradients_to_earlier_ones() -> None:
    output, gradient = "output", "gradient of the output"
    assert [*places(seen(0, 0, gradient), seen(1, 1, output), seen(2, 2, output))] == [1]
    assert [*places(seen(0, 0, gradient), seen(1, 1, gradient), seen(2, 2, gradient))] == [2]
    assert [*places(seen(0, 0, output), seen(1, 0, output), seen(2, 1, output))] == [0, 1]
