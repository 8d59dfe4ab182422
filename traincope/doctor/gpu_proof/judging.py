"""Judge the runs and traces that the ranks of the trainings leave in a folder.

FOLDER/<training>/run           the recorded run
FOLDER/<training>/rank<R>.json  torch's trace of the same steps
FOLDER/windows                  the run whose windows measure the overhead
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.ledger.sampling import sampling
from traincope.doctor.finding import State
from traincope.doctor.gpu_proof.proof import Collectives, Problem, Proof, TrainingProof
from traincope.doctor.gpu_proof.traced_marks import (
    EXPOSED,
    Steps,
    TracedMarks,
    differences,
    ledger_steps,
    traced_collectives,
    traced_steps,
)
from traincope.doctor.recorded import examine_run
from traincope.errors import DataError
from traincope.events import Kind
from traincope.ingest import import_traces
from traincope.timeline import LedgerClock, open_run
from traincope.units import count, numbers

SMALL_KERNELS, LARGE_KERNELS = "small kernels", "large kernels"
TRAININGS = (SMALL_KERNELS, LARGE_KERNELS)
COMPARED = range(3, 13)
"""Compared steps. In the steps before, the recorder counts tensors after each phase: outside of the phase, but inside
its annotation, as long as it takes.
"""
RUN, WINDOWS = "run", "windows"
SHOWN_VERSIONS = ("traincope", "python", "torch", "cuda", "nccl")
FED_RATIO = 0.5
"""Share of step time without queued work below which the GPU decides how long the step is."""
NCCL = "nccl"


def trace_name(rank: int) -> str:
    return f"rank{rank}.json"


def judge(folder: Path, *, on_gpu: bool, driver: str | None) -> Proof:
    """Make the proof of all trainings in `folder`. Raises RunDirectoryError if one left no readable run."""
    names = [name for name in TRAININGS if (folder / name).is_dir()]
    windows = analyze(open_run(folder / WINDOWS))
    sampled = sampling(windows.timeline, windows.ledger, own_ratio=None)
    run = windows.timeline.run
    return Proof(
        gpus=tuple(str(rank.info.device.get("name", "unknown")) for rank in run.ranks),
        on_gpu=on_gpu,
        driver=driver,
        versions={name: run.info.versions[name] for name in SHOWN_VERSIONS if name in run.info.versions},
        trainings=tuple(judge_training(folder / name, steps=COMPARED) for name in names),
        overhead=sampled.measured_overhead,
        windows=sampled.windows,
    )


def judge_training(place: Path, *, steps: range) -> TrainingProof:
    """Compare these steps of every rank of the run in `place` with those of its traces."""
    analysis, problems = analyze(open_run(place / RUN)), tuple(_unhealthy(place / RUN))
    if analysis.ledger.clock is not LedgerClock.DEVICE:
        reason = analysis.why_on_host or "no rank used a GPU"
        on_host = Problem(reason=f"the ledger is on the hosts' clocks: {reason}")
        return TrainingProof(name=place.name, problems=(*problems, on_host))
    ledgers = {rank.rank: _only(steps, ledger_steps(rank)) for rank in analysis.ledger.ranks}
    problems += tuple(_unmeasured(ledgers, steps=steps))
    try:
        return _compared(place, analysis, ledgers, problems)
    except DataError as error:
        without_path = Problem(reason=str(error).replace(f"{place}/", ""))
        return TrainingProof(name=place.name, problems=(*problems, without_path))


def _compared(
    place: Path, analysis: Analysis, ledgers: Mapping[int, Steps], problems: tuple[Problem, ...]
) -> TrainingProof:
    marks = {rank: TracedMarks(place / trace_name(rank)) for rank in ledgers}
    return TrainingProof(
        name=place.name,
        by_marks=differences(ledgers, {rank: traced_steps(each) for rank, each in marks.items()}),
        by_import=differences(ledgers, _imported(place, ledgers), parts=_same_by_import(analysis)),
        collectives=_collectives(analysis, ledgers, marks),
        problems=problems,
    )


def _unhealthy(run: Path) -> Iterator[Problem]:
    for section in examine_run(run).sections:
        for finding in section.findings:
            if finding.state is State.BAD:
                yield Problem(reason=f"{section.title.lower()}, {finding.name}: bad", detail=finding.fact)


def _only(steps: range, measured: Steps) -> Steps:
    return {number: parts for number, parts in measured.items() if number in steps}


def _unmeasured(ledgers: Mapping[int, Steps], *, steps: range) -> Iterator[Problem]:
    for rank, measured in ledgers.items():
        missing = sorted(set(steps) - set(measured))
        if missing:
            which = f"{count(len(missing), 'step')} of {len(steps)} ({numbers(missing, 'step')})"
            yield Problem(reason=f"the ledger of rank {rank} lacks {which}")


def _same_by_import(analysis: Analysis) -> tuple[str, ...]:
    """Return the parts of a step that a ledger by marks and one of kernels define alike.

    Kernels show idle time within phases, which marks do not. A copy or collective starts before the wait for it is
    queued, unless the host runs ahead.
    """
    ahead = analysis.run_ahead
    fed = ahead is not None and ahead.empty_ratio < FED_RATIO
    return ("step", EXPOSED) if fed else ("step",)


def _imported(place: Path, ledgers: Mapping[int, Steps]) -> dict[int, Steps]:
    """Return the steps of the imported traces. Raises DataError if one cannot be imported whole."""
    target = place / "imported"
    for trace in import_traces([place / trace_name(rank) for rank in ledgers], target):
        if trace.lost is not None or trace.num_untimed:
            raise DataError(f"{trace.source.name} is incomplete: {trace.lost or 'an event has no valid time'}")
    steps = {rank.rank: ledger_steps(rank) for rank in analyze(open_run(target)).ledger.ranks}
    return {rank: steps.get(rank, {}) for rank in ledgers}


def _collectives(analysis: Analysis, ledgers: Mapping[int, Steps], marks: Mapping[int, TracedMarks]) -> Collectives:
    recorded, traced = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for rank in analysis.timeline.ranks:
        for records in rank.threads.values():
            steps, counts = np.unique(records["step"][records["kind"] == Kind.COLLECTIVE], return_counts=True)
            for step, number in zip(steps.tolist(), counts.tolist(), strict=True):
                recorded[rank.rank, step] += number
    for number, each in marks.items():
        traced.update({(number, step): calls for step, calls in traced_collectives(each).items()})
    places = [(rank, step) for rank, steps in ledgers.items() for step in steps]
    return Collectives(
        recorded=sum(recorded[place] for place in places),
        traced=sum(traced[place] for place in places),
        nccl_kernels=sum(NCCL in name.lower() for each in marks.values() for name in each.kernels),
        equal=all(recorded[place] == traced[place] > 0 for place in places),
    )
