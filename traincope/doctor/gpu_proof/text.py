"""The proof as a table and as a redacted JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.doctor.gpu_proof.proof import LIMIT_RATIO, OVERHEAD_LIMIT_RATIO, Check, Proof, TrainingProof
from traincope.lines import INDENT, Trimmed, indented, table, text
from traincope.palette import GOOD, SEVERE
from traincope.units import count, milliseconds, share

SCHEMA_VERSION = 1


def to_proof_document(proof: Proof) -> dict[str, Any]:
    """JSON of a proof, to share: it has models of GPUs, versions and numbers, and no name of a host, user or path."""
    return {
        "schema_version": SCHEMA_VERSION,
        "passed": proof.passed,
        "on_gpu": proof.on_gpu,
        "gpus": list(proof.gpus),
        "driver": proof.driver,
        "versions": dict(proof.versions),
        "limit_ratio": LIMIT_RATIO,
        "overhead_limit_ratio": OVERHEAD_LIMIT_RATIO,
        "trainings": [_training(training) for training in proof.trainings],
        "checks": [{"training": check.training, "name": check.name, "passed": check.passed} for check in proof.checks],
        "overhead": None if proof.overhead is None else asdict(proof.overhead),
        "windows": proof.windows,
        "unproved": list(proof.unproved),
    }


def _training(training: TrainingProof) -> dict[str, Any]:
    return {
        "name": training.name,
        "by_marks": [asdict(row) for row in training.by_marks],
        "by_import": [asdict(row) for row in training.by_import],
        "collectives": None if training.collectives is None else asdict(training.collectives),
        "problems": [problem.reason for problem in training.problems],
    }


def render_proof(proof: Proof, console: Console) -> None:
    """Write a proof to `console`."""
    for renderable in _parts(proof):
        console.print(Trimmed(renderable), end="")


def _parts(proof: Proof) -> Iterator[RenderableType]:
    yield text(_subject(proof), style="bold")
    yield text("")
    yield text(f"Recorder and torch's profiler on the same steps; limit {share(LIMIT_RATIO)} of the step", style="bold")
    yield _rows(proof)
    yield _overhead(proof)
    if proof.problems:
        yield text("")
        yield text("Problems", style="bold")
        yield indented(
            text(f"{name}: {problem.reason}{'' if problem.detail is None else f' ({problem.detail})'}", style=SEVERE)
            for name, problem in proof.problems
        )
    yield text("")
    yield text("Not proved", style="bold")
    yield indented(text(sentence) for sentence in proof.unproved)
    yield text("")
    yield _verdict(proof)


def _subject(proof: Proof) -> str:
    models = ", ".join(f"{proof.gpus.count(name)} x {name}" for name in dict.fromkeys(proof.gpus))
    driver = {} if proof.driver is None else {"driver": proof.driver}
    return ", ".join([models, *(f"{name} {number}" for name, number in {**driver, **proof.versions}.items())])


def _rows(proof: Proof) -> RenderableType:
    rows = table("part of a step", "ledger ms", "trace ms", "difference", "")
    for training in proof.trainings:
        rows.add_row(f"{INDENT * ' '}{training.name}")
        for check in proof.checks:
            if check.training == training.name:
                name = f"{2 * INDENT * ' '}{check.name}"
                rows.add_row(name, *_cells(check, training), _result(check.passed))
    return rows


def _cells(check: Check, training: TrainingProof) -> tuple[str, str, str]:
    row = check.difference
    if row is not None:
        return milliseconds(row.ledger_ns), milliseconds(row.trace_ns), _percent(row.ratio)
    found = training.collectives
    assert found is not None
    return count(found.recorded, "call"), count(found.traced, "call"), count(found.nccl_kernels, "kernel")


def _overhead(proof: Proof) -> Text:
    limit = f"limit {share(OVERHEAD_LIMIT_RATIO)}"
    if proof.overhead is None:
        measured = f"not measured in {count(proof.windows, 'window')}; give a larger --seconds"
    else:
        low, high = _percent(proof.overhead.low), _percent(proof.overhead.high)
        measured = f"{_percent(proof.overhead.estimate)} (95 %: {low} to {high}), {limit}"
    return text(f"{INDENT * ' '}overhead of detail: {measured}  ").append_text(_result(proof.overhead_passed))


def _percent(ratio: float) -> str:
    """With a digit more than the limits, so that no value rounds to one."""
    return f"{100 * ratio:.2f} %"


def _result(passed: bool) -> Text:
    return Text("pass" if passed else "FAIL", style=GOOD if passed else f"bold {SEVERE}")


def _verdict(proof: Proof) -> Text:
    results = [*(check.passed for check in proof.checks), proof.overhead_passed]
    rows = f"{sum(results)} of {count(len(results), 'row')}"
    if proof.passed:
        return Text(f"PASSED: {rows}", style=f"bold {GOOD}")
    problems = f", {count(len(proof.problems), 'problem')}" if proof.problems else ""
    return Text(f"FAILED: {rows} passed{problems}", style=f"bold {SEVERE}")
