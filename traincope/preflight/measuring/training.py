"""Steps of the configured training under the recorder, and the times of its pipeline's stages."""

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

import traincope
from traincope.analysis import Analysis, analyze
from traincope.analysis.pipeline.replicas import replica_steps
from traincope.arrays import Ints
from traincope.engine.config import Config
from traincope.engine.config.stability import StabilityConfig
from traincope.engine.ranks.together import Together
from traincope.engine.trainer import Trainer
from traincope.errors import RunDirectoryError, TrainingError
from traincope.preflight.measurements import Round, StageTimes, Training
from traincope.store import read_run
from traincope.timeline.building import build_timeline

WARM_UP_STEPS = 3
FAST_QUANTILE = 0.1
"""Quantile of a stage's actions of one kind, over steps and microbatches. Ranks on a CPU share cores, and then slow
actions show the load of others."""


def measure_training(config: Config, *, together: Together, device: torch.device, steps: int) -> Training | None:
    """Train on all ranks, without checkpoints and evaluations; None for no steps.

    Each rank records into a directory of its own, so that hosts need no common disk. Raises TrainingError without a
    record.
    """
    if not steps:
        return None
    with tempfile.TemporaryDirectory(prefix="traincope-preflight-") as name:
        own, whole = Path(name) / "own", Path(name) / "all"
        _record(shortened(config, steps=steps), device=device, out=own)
        files = together.at_first(_files(own))
        measured = together.do(lambda: None if files is None else _analysed(whole, files))
    return together.first(measured)


def shortened(config: Config, *, steps: int) -> Config:
    """The configuration with `steps` measured steps, and nothing that interrupts them."""
    train = replace(config.train, steps=WARM_UP_STEPS + steps, evaluate_every=None)
    return replace(config, train=train, checkpoint=None, stability=StabilityConfig())


def _record(config: Config, *, device: torch.device, out: Path) -> None:
    with traincope.run(out, budget=None, agent=False) as run:
        for _ in Trainer(config, device=device).steps():
            run.step()


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _analysed(root: Path, files: list[dict[str, bytes]]) -> Training:
    """Write the records of all ranks into one run directory, the first rank's last, and analyse it."""
    for of_rank in reversed(files):
        for name, content in of_rank.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    try:
        return _training(analyze(build_timeline(read_run(root))))
    except RunDirectoryError as error:
        raise TrainingError(
            f"the recorder recorded no steps of the training ({error}); unset TRAINCOPE, and do not start preflight "
            "under `traincope run`"
        ) from error


def _training(analysis: Analysis) -> Training:
    if analysis.median_step_ns is None:
        raise TrainingError("the recorder counted no step of the training; give --steps of at least 5")
    bubble = analysis.bubble
    steps = min(rank.num_counted for rank in analysis.ledger.ranks)
    if bubble is None:
        return Training(steps=steps, step_seconds=analysis.median_step_ns / 1e9)
    times = _stage_seconds(analysis)
    stages = {number: each for each in bubble.stages for number in (each.stage, *each.others)}
    return Training(
        steps=steps,
        step_seconds=analysis.median_step_ns / 1e9,
        schedule=bubble.schedule,
        microbatches=bubble.num_microbatches,
        theory_ratio=bubble.theory_ratio,
        stages=tuple(
            StageTimes(
                stage=number,
                ranks=each.ranks,
                seconds=times[number].seconds,
                num_steps=times[number].num_steps,
                bubble_ratio=each.fraction_ratio,
            )
            for number, each in sorted(stages.items())
        ),
    )


class _Times(NamedTuple):
    """Times of one stage's actions."""

    num_steps: int
    """Steps of the pipeline that has fewest."""
    seconds: dict[Round, dict[str, float]]


def _stage_seconds(analysis: Analysis) -> Mapping[int, _Times]:
    """Stage -> half of the steps -> kind of action -> seconds, the median over the pipelines."""
    seconds: dict[int, dict[Round, dict[str, list[float]]]] = defaultdict(
        lambda: {round: defaultdict(list) for round in Round}
    )
    steps: dict[int, set[int]] = defaultdict(set)
    for group in replica_steps(analysis.context.measured):
        chosen_steps = halves(group.numbers[group.numbers >= WARM_UP_STEPS])
        if not chosen_steps[Round.FIRST].size:
            continue
        actions: dict[tuple[str, int], list[Ints]] = defaultdict(list)
        for action, durations in group.replica.durations_ns.items():
            actions[action.kind, action.stage].append(np.atleast_1d(durations))
        for (kind, stage), of_microbatches in actions.items():
            steps[stage].add(len(np.union1d(*chosen_steps.values())))
            for round, numbers in chosen_steps.items():
                chosen = np.isin(group.numbers, numbers)
                fast = np.quantile(np.stack(of_microbatches)[:, chosen], FAST_QUANTILE)
                seconds[stage][round][kind].append(float(fast) / 1e9)
    return {
        stage: _Times(
            min(steps[stage]),
            {round: {kind: median(values) for kind, values in kinds.items()} for round, kinds in rounds.items()},
        )
        for stage, rounds in seconds.items()
    }


def halves(numbers: Ints) -> Mapping[Round, Ints]:
    """The earlier and the later half of the steps, equally many; the middle one of an odd number is in neither.

    A single step is in both, so that it has times; it names no stage.
    """
    each = max(numbers.size // 2, min(numbers.size, 1))
    return {Round.FIRST: numbers[:each], Round.SECOND: numbers[numbers.size - each :]}
