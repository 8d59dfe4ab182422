"""python -m evaluation.truth.layouts.step_times: steps of layouts, predicted from rates of another, then made.

One training with shards (FSDP) shows the rates of this machine, as `plan search --like RUN` takes them: FLOP/s of a
rank's compute, the law of its collectives, and the rest of a step. The formula then predicts other layouts. It may be
off by 15 % of the step. All trainings run in turn, in three rounds. A machine's speed changes between rounds, so a
layout is compared with the rates of its own round, and the round of median error counts. Exits with 1 if a row misses.
On a busy machine, root can give the ranks precedence: `chrt -f 10 python -m ...`.
"""

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import traincope
from evaluation.truth.layouts.trainings import MEASURED, PREDICTED, TEXT, Training, train
from tests.distributed.ranks.pool import Pool
from traincope.analysis import Analysis, measured_rates
from traincope.engine.model.shape import planned_layout, transformer
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.prediction import Prediction, predict
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision

ALLOWED = 0.15
ROUNDS = 3
FP32 = Precision(weights="fp32", gradients="fp32", activations="fp32")
UNMEASURED = Machine(
    peak_flops=1e15,
    memory_bytes=1 << 40,
    ranks_per_node=64,
    node_bytes_per_second=1e15,
    network_bytes_per_second=1e15,
    memory_bytes_per_second=1e15,
)
"""Rates beyond any CPU, which the measured ones replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Steps of one layout, trained and predicted in the same round."""

    measured: float
    expected: float

    @property
    def error(self) -> float:
        return self.expected / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Step of one layout."""

    name: str
    ranks: int
    rounds: Sequence[Round]

    @property
    def median(self) -> Round:
        """The round of median error."""
        return sorted(self.rounds, key=lambda each: each.error)[len(self.rounds) // 2]

    def __str__(self) -> str:
        errors = [each.error for each in self.rounds]
        median = self.median
        times = f"{median.measured:.2f} s | {median.expected:.2f} s | {median.error:+.1%}"
        return f"| {self.name} | {self.ranks} | {times} | {min(errors):+.1%} to {max(errors):+.1%} |"


def rows() -> Iterator[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        text = directory / "text.txt"
        text.write_text(TEXT)
        for ranks, shown in MEASURED.items():
            pool = Pool(ranks, patience=4)
            stack.callback(pool.stop)
            named = {name: each for name, each in PREDICTED.items() if each.parallel.world_size == ranks}
            rounds = defaultdict(list)
            for number in range(ROUNDS):
                runs = _runs(pool, {"": shown, **named}, text=str(text), directory=directory / f"{ranks}-{number}")
                for name, training in named.items():
                    prediction = predicted(training, like=runs[""], text=str(text))
                    measured = Round(measured=_step_seconds(runs[name]), expected=prediction.expected_seconds)
                    rounds[name].append(measured)
            yield from (Row(name=name, ranks=ranks, rounds=rounds[name]) for name in named)


def _runs(pool: Pool, trainings: Mapping[str, Training], *, text: str, directory: Path) -> Mapping[str, Analysis]:
    """Run each training once, in turn."""
    runs = {}
    for number, (name, training) in enumerate(trainings.items()):
        out = directory / str(number)
        pool.run(train, training, text, str(out))
        runs[name] = traincope.analyze(traincope.open_run(out))
        print(f"{name or 'rates'}: {_step_seconds(runs[name]):.3f} s", file=sys.stderr, flush=True)
    return runs


def _step_seconds(analysis: Analysis) -> float:
    assert analysis.median_step_ns is not None
    return analysis.median_step_ns / 1e9


def predicted(training: Training, *, like: Analysis, text: str) -> Prediction:
    config = training.config(text)
    policy = ActivationPolicy(recompute=Recompute(training.recompute), flash=True, dropout=False, dtype="fp32")
    machine = measured_rates(like, source="the training with shards").applied(UNMEASURED)
    layout = planned_layout(config)
    return predict(transformer(config), layout=layout, precision=FP32, policy=policy, machine=machine, causal_half=True)


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| layout | ranks | measured | predicted | error | of all rounds |\n|---|---|---|---|---|---|", flush=True)
    found = []
    for row in rows():
        print(row, flush=True)
        found.append(row)
    errors = [abs(row.median.error) for row in found]
    missed = sum(error > ALLOWED for error in errors)
    print(f"{len(found)} layouts; off by {max(errors):.1%} at most, {ALLOWED:.0%} allowed; {missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
