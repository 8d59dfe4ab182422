"""python -m evaluation.truth predicted: gains of eight changes, predicted from one real training, then really made.

Each training runs on gloo ranks without the change, and `predict_settings` gives its step after it. Then it runs with
the change. The two gains may differ by a fifth of the gain, or by 1 % of the step if that is more. Work is sleeps,
because there are more ranks than cores. Links are made slow by a law of a ring that the prediction is not given:
latency per step, and seconds per byte. Two changes are of the engine's own layouts (`layouts/trainings.py`). Each
training runs three times, and the run of median step counts. `noise` is that of `what_if.py`.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import traincope
from evaluation.truth.layouts.trainings import TEXT, Training, slept, train
from evaluation.truth.machines.links import SlowLinks
from evaluation.truth.pipelines.cases import Case
from evaluation.truth.pipelines.lateness import DISTURBED, Sleeper
from evaluation.truth.rows import Row
from evaluation.truth.trainings.training import WIDTH, Layer
from evaluation.truth.trainings.what_if import FULL, NAMED, Effect, run
from evaluation.truth.trainings.workloads import MS, Workload
from tests.distributed.ranks.pool import Pool
from traincope.analysis import parse_settings, predict_settings
from traincope.errors import UsageError
from traincope.plan.pipeline.actions import Times
from traincope.plan.pipeline.orders import Shape

WITHIN_GAIN, WITHIN_STEP = 0.20, 0.01
WHOLE = Times(forward=2, backward_input=2, backward_weight=2)
HALF = Times(forward=1, backward_input=1, backward_weight=1)
"""Units of an action, and of one on half of the sequences, or half of the layers."""
STEPS = 6
ROUNDS = 3
"""Runs of each training, those before and after a change in turn."""


class Link(NamedTuple):
    """A ring's all-reduce: 2 (n - 1) steps, and 2 (n - 1) / n of the bytes."""

    step_seconds: float
    seconds_per_byte: float

    def seconds(self, num_bytes: int, *, ranks: int) -> float:
        return 2 * (ranks - 1) * (self.step_seconds + num_bytes / ranks * self.seconds_per_byte)


LINK = Link(step_seconds=0.004, seconds_per_byte=3.6e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A tensor-parallel training: layers whose outputs, of unlike sizes, are summed over all its ranks."""

    ranks: int
    forward_seconds: float = 0.2
    """Of a layer on one rank; divided by the ranks."""
    backward_seconds: float = 0.3
    repeats: tuple[int, ...] = (1, 64)
    """Times that each layer's output of 128 bytes is repeated in its message."""
    link: Link = LINK


class Repeated(nn.Module):
    """A layer that sums a message of several copies of its output, and continues with the first copy."""

    def __init__(self, layer: Layer, repeats: int) -> None:
        super().__init__()
        self.layer, self.repeats = layer, repeats

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x.repeat(self.repeats, 1))
        return result[: len(x)]


def train_split(directory: str, case: Split) -> None:
    """Runs on every rank of a pool. The first step is warm-up."""
    with traincope.run(directory, budget=None) as recorded:
        mesh = init_device_mesh("cpu", (case.ranks,), mesh_dim_names=("tp",))
        group = mesh.get_group("tp")
        model = nn.Sequential(
            *(
                Repeated(
                    Layer(
                        forward=case.forward_seconds / case.ranks,
                        backward=case.backward_seconds / case.ranks,
                        group=group,
                    ),
                    repeats,
                )
                for repeats in case.repeats
            )
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def on_the_wire(num_bytes: int) -> float:
            return case.link.seconds(num_bytes, ranks=case.ranks)

        with SlowLinks({("all_reduce", group.group_name): on_the_wire}):
            for _ in range(STEPS):
                model(torch.ones(4, WIDTH)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                recorded.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A training, the settings that are asked for, and the training that has them."""

    title: str
    before: Workload | Case | Split | Training
    expression: str
    after: Workload | Case | Split | Training


EVEN = Case(schedule="1f1b", shape=FULL, clips=True, times=WHOLE)
SLOW = NAMED["tp: slow link, rank 0 slow"]
LOADING = NAMED["ddp: slow loaders"]
CHANGES = (
    Change(
        title="more microbatches",
        before=EVEN,
        expression="microbatches=8",
        after=replace(EVEN, shape=Shape(ranks=2, microbatches=8), times=HALF),
    ),
    Change(
        title="interleaving",
        before=EVEN,
        expression="schedule=interleaved,virtual=2",
        after=replace(EVEN, schedule="interleaved", shape=Shape(ranks=2, microbatches=4, chunks=2), times=HALF),
    ),
    Change(title="zero-bubble", before=EVEN, expression="schedule=zb-1p", after=replace(EVEN, schedule="zb-1p")),
    Change(title="prefetch", before=LOADING, expression="prefetch=1", after=replace(LOADING, prefetch=1)),
    Change(title="other tp", before=Split(ranks=2), expression="tp=4", after=Split(ranks=4)),
    Change(title="other dp", before=slept(fsdp=2), expression="dp=4", after=slept(fsdp=4)),
    Change(title="other cp", before=slept(fsdp=2), expression="cp=2", after=slept(fsdp=2, cp=2)),
    Change(
        title="no straggler",
        before=SLOW,
        expression="stragglers=none",
        after=replace(SLOW, forward_ns=(100 * MS,), straggler=None),
    ),
)


def effect(pool: Pool, training: Workload | Case | Split | Training, directory: Path) -> Effect:
    """Run, record and analyse."""
    if isinstance(training, Workload | Case):
        return run(pool, training, directory, steps=STEPS)
    with Sleeper() as sleeper:
        if isinstance(training, Split):
            pool.run(train_split, str(directory), training)
        else:
            text = directory.with_suffix(".txt")
            text.write_text(TEXT)
            pool.run(train, training, str(text), str(directory))
    analysis = traincope.analyze(traincope.open_run(directory))
    return Effect(analysis, sleeper.late_ratio, disturbed=sleeper.late_ratio > DISTURBED)


def predicted_rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        pools = {each.ranks: Pool(each.ranks) for change in CHANGES for each in (change.before, change.after)}
        for pool in pools.values():
            stack.callback(pool.stop)
        for number, change in enumerate(CHANGES):
            rounds = [
                (
                    effect(pools[change.before.ranks], change.before, directory / f"{number}-{round_}"),
                    effect(pools[change.after.ranks], change.after, directory / f"{number}-{round_}-changed"),
                )
                for round_ in range(ROUNDS)
            ]
            before, after = map(_middle, zip(*rounds, strict=True))
            if before.disturbed or after.disturbed:
                print(f"{change.title}: disturbed by other processes; run it on an idle machine", file=sys.stderr)
            yield row(change, before, after)


def _middle(effects: Sequence[Effect]) -> Effect:
    """The effect whose step is the median: a disturbance of one round changes nothing."""
    return sorted(effects, key=lambda each: each.step_ns)[len(effects) // 2]


def row(change: Change, before: Effect, after: Effect) -> Row:
    """The row of a change; it misses if the gains differ by more than both tolerances, or if no gain is predicted."""
    settings = parse_settings(change.expression)
    assert settings is not None, change.expression
    true_ns = before.step_ns - after.step_ns
    truth = f"{_gain(true_ns)} of {before.step_ns / 1e6:.0f} ms"
    try:
        prediction = predict_settings(before.analysis, settings)
    except UsageError as refusal:
        print(f"{change.title}: {refusal}", file=sys.stderr)
        return Row(
            part="predicted",
            case=change.title,
            quantity=change.expression,
            truth=truth,
            measured="refused",
            noise=f"{max(before.noise, after.noise):.2%}",
            holds=False,
        )
    assert prediction.reason is None, prediction.reason
    predicted_ns = prediction.step_ns - prediction.predicted_ns
    error_ns = predicted_ns - true_ns
    return Row(
        part="predicted",
        case=change.title,
        quantity=change.expression,
        truth=truth,
        measured=f"{_gain(predicted_ns)} of {prediction.step_ns / 1e6:.0f} ms",
        error=f"{error_ns / true_ns:+.1%}",
        noise=f"{max(before.noise, after.noise):.2%}",
        of_step=error_ns / before.step_ns,
        holds=abs(error_ns) <= max(WITHIN_GAIN * abs(true_ns), WITHIN_STEP * before.step_ns),
    )


def _gain(ns: float) -> str:
    return f"{ns / 1e6:+.1f} ms"
