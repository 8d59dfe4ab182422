"""The pipeline of the configured training: its idle time against the formula, and a stage that takes too long."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from traincope.preflight.judging.costs import (
    ConfiguredPipeline,
    played_out,
    relative_times,
    span_seconds,
    stage_costs,
    total_seconds,
)
from traincope.preflight.judging.findings import Finding, Kind
from traincope.preflight.judging.remedies import LAYERS, Change, Remedy, remedies
from traincope.preflight.measurements import Round, StageTimes, Training
from traincope.units import count, numbers, share

MIN_IMBALANCE = 0.05
"""Share of the pipeline's time that stages must idle because one of them is longer. The report names losses from the
same share on."""
MIN_STEPS = 4
"""Fewest steps whose halves can agree: two each."""
MIN_FACTOR = 1.3
"""Multiple of the other stages' median that the longest stage must take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJudgement:
    """Measured and predicted idle time, and remedies."""

    theory_ratio: float | None
    """Idle share by the schedule's formula: equal stages and instant messages."""
    predicted_ratio: float
    """Idle share by the timetable of the measured stages and messages, as a share of the pipeline's time."""
    predicted_seconds: float
    """Time of all rounds of the schedule in a step, by the same timetable."""
    measured_ratio: float
    """Idle share of the whole step by the recorder, mean over the stages."""
    alarm_ratio: float
    remedies: tuple[Remedy, ...]
    """Remedies for an alarm or an unbalanced stage; empty without one."""
    findings: tuple[Finding, ...]


def judge_pipeline(
    training: Training, pipeline: ConfiguredPipeline, *, alarm_ratio: float, message_seconds: float = 0.0
) -> PipelineJudgement | None:
    """Judge the pipeline; None if a stage was not measured. `message_seconds`: activations from stage to stage."""
    if len(training.stages) < pipeline.shape.stages:
        return None
    kinds = {stage.stage: _both_rounds(stage) for stage in training.stages}
    costs, seconds = stage_costs(pipeline, kinds), {stage: total_seconds(each) for stage, each in kinds.items()}
    size = {"schedule": pipeline.schedule, "shape": pipeline.shape, "times": costs.times}
    table = played_out(seconds, transfer_seconds=message_seconds, **size)  # type: ignore[arg-type]
    measured = sum(stage.bubble_ratio for stage in training.stages) / len(training.stages)
    unbalanced = tuple(_unbalanced(training, pipeline))
    alarmed = measured > alarm_ratio
    cures = remedies(pipeline, costs, target_ratio=alarm_ratio) if alarmed or unbalanced else ()
    findings = (*unbalanced, *([_alarm(training, measured, alarm_ratio, cures)] if alarmed else []))
    return PipelineJudgement(
        theory_ratio=training.theory_ratio,
        predicted_ratio=table.idle_ratio,
        predicted_seconds=pipeline.rounds * span_seconds(table, seconds, times=costs.times),
        measured_ratio=measured,
        alarm_ratio=alarm_ratio,
        remedies=cures,
        findings=findings,
    )


def remedy_words(remedy: Remedy) -> str:
    """The change as an instruction with its expected gain."""
    settings = "set " + ", ".join(f"{key} = {value}" for key, value in remedy.settings.items())
    if remedy.change is Change.REBALANCING:
        settings = f"give the stages {remedy.settings[LAYERS]} layers"
    return (
        f"{remedy.change}: {settings}: the predicted bubble is {share(remedy.bubble_ratio)} of the pipeline's "
        f"time, which saves {share(remedy.saving_ratio)} of it per sequence"
    )


def _both_rounds(stage: StageTimes) -> dict[str, float]:
    """Mean of the two halves of the run, by kind."""
    first, second = (stage.seconds[round] for round in Round)
    return {kind: (first[kind] + second[kind]) / 2 for kind in first if kind in second}


def _unbalanced(training: Training, pipeline: ConfiguredPipeline) -> Iterator[Finding]:
    """The longest stage, if both halves of the run show the same one; none with fewer than MIN_STEPS steps."""
    if min(stage.num_steps for stage in training.stages) < MIN_STEPS:
        return
    halves = [_longest(training, pipeline, round) for round in Round]
    if any(half is None for half in halves) or len({half[0] for half in halves if half is not None}) != 1:
        return
    stage, factor, idle = min((half for half in halves if half is not None), key=lambda half: half[1])
    (held,) = (each for each in training.stages if each.stage == stage)
    layers, usual = len(pipeline.split[stage]), median(len(layers) for layers in pipeline.split)
    own = f"{count(layers, 'layer')}" + (f", the median stage {usual:g}" if layers != usual else "")
    yield Finding(
        kind=Kind.UNBALANCED_STAGE,
        ranks=held.ranks,
        stage=stage,
        factor=factor,
        evidence=f"stage {stage} ({numbers(held.ranks, 'rank')}; {own}) computes {factor:.2f} times as long per "
        f"microbatch as the median of the other stages, in both halves of the steps; the pipeline idles {share(idle)} "
        "of its time for it",
        advice=_cause(stage, layers > usual, pipeline),
    )


def _cause(stage: int, more_layers: bool, pipeline: ConfiguredPipeline) -> str:
    if more_layers:
        return f"Choose model.layers so that they divide by the {pipeline.shape.stages} stages, or move layers away"
    if stage in (0, pipeline.shape.stages - 1):
        end = "embedding" if stage == 0 else "output and loss"
        return f"Move layers away from stage {stage}: it also computes the {end}"
    return f"Check the ranks of stage {stage}: it has no more layers than others"


def _longest(training: Training, pipeline: ConfiguredPipeline, round: Round) -> tuple[int, float, float] | None:
    """(stage, multiple of the others' median, idle share that it causes) in one half; None if that is not much."""
    kinds: Mapping[int, Mapping[str, float]] = {stage.stage: stage.seconds[round] for stage in training.stages}
    seconds = {stage: total_seconds(each) for stage, each in kinds.items()}
    stage = max(seconds, key=lambda stage: seconds[stage])
    factor = seconds[stage] / median(others for other, others in seconds.items() if other != stage)
    times = relative_times(kinds)
    mean = sum(seconds.values()) / len(seconds)
    uneven, even = (
        played_out(each, schedule=pipeline.schedule, shape=pipeline.shape, times=times).idle_ratio
        for each in (seconds, dict.fromkeys(seconds, mean))
    )
    return (stage, factor, uneven - even) if factor > MIN_FACTOR and uneven - even > MIN_IMBALANCE else None


def _alarm(training: Training, measured: float, alarm_ratio: float, cures: tuple[Remedy, ...]) -> Finding:
    theory = "" if training.theory_ratio is None else f"; equal stages would idle {share(training.theory_ratio)}"
    advice = (
        "No change of microbatches, schedule or layers is predicted to help: find what delays the stages in a recorded "
        "run (traincope report)"
    )
    if cures:
        words = remedy_words(cures[0])
        advice = words[0].upper() + words[1:]
    return Finding(
        kind=Kind.BUBBLE,
        ranks=(),
        factor=measured,
        evidence=f"the pipeline idles {share(measured)} of step time, above the alarm at {share(alarm_ratio)}{theory} "
        f"({training.schedule}, {microbatches(training.microbatches)})",
        advice=advice,
    )


def microbatches(number: int | None) -> str:
    """The number with its noun."""
    return f"{count(number)} microbatch{'' if number == 1 else 'es'}"
