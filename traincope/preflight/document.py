"""JSON of a preflight: the whole job, and the report of one host."""

from dataclasses import asdict
from typing import Any

from traincope.preflight.judging.findings import Finding
from traincope.preflight.judging.judgement import HostJudgement, Judgement
from traincope.preflight.judging.pipeline import PipelineJudgement
from traincope.preflight.judging.ranks import usual_seconds
from traincope.preflight.judging.sweeps import Sweep
from traincope.preflight.measurements import Measurements, Place, Quantity, Rate, Round, Training

SCHEMA_VERSION = 1


def to_document(judgement: Judgement, measured: Measurements) -> dict[str, Any]:
    """The whole job. Times are seconds, rates FLOP/s and bytes/s; what was not measured is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        "passed": judgement.passed,
        "comparable": judgement.comparable,
        "hosts": [_host(host, measured) for host in judgement.hosts],
        "findings": [_finding(finding) for finding in judgement.findings],
        "sweeps": [_sweep(sweep) for sweep in judgement.sweeps],
        "pairs": [_pair_document(measured, round) for round in Round],
        "training": _training(measured.training, judgement),
        "pipeline": None if judgement.pipeline is None else _pipeline(judgement.pipeline, measured.training),
    }


def to_node_report(host: HostJudgement, measured: Measurements) -> dict[str, Any]:
    """One host, as in `hosts` of the whole job."""
    return {"schema_version": SCHEMA_VERSION, **_host(host, measured)}


def _host(host: HostJudgement, measured: Measurements) -> dict[str, Any]:
    return {
        "host": host.host,
        "passed": host.passed,
        "findings": [_finding(finding) for finding in host.findings],
        "ranks": [_rank(place, measured) for place in host.places],
    }


def _rank(place: Place, measured: Measurements) -> dict[str, Any]:
    rates = {rate.quantity: rate for rate in measured.rates if rate.rank == place.rank}
    products = rates.get(Quantity.PRODUCTS)
    return {
        **asdict(place),
        "dtype": None if products is None else products.dtype,
        "product_flops_per_second": _per_second(products),
        "memory_bytes_per_second": _per_second(rates.get(Quantity.MEMORY)),
    }


def _per_second(rate: Rate | None) -> float | None:
    return None if rate is None else rate.amount / usual_seconds(rate, Round.FIRST)


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "ranks": list(finding.ranks)}


def _sweep(sweep: Sweep) -> dict[str, Any]:
    fitted = sweep.fit
    return {
        "axis": sweep.axis,
        "operation": sweep.operation,
        "ranks": sweep.ranks,
        "groups": [list(group) for group in sweep.groups],
        "latency_seconds": None if fitted is None else fitted.latency_seconds,
        "bus_bytes_per_second": None if fitted is None else fitted.bytes_per_second,
        "fit_error_ratio": None if fitted is None else fitted.error_ratio,
        "points": [{"bytes": num_bytes, "seconds": seconds} for num_bytes, seconds in sweep.seconds.items()],
    }


def _pair_document(measured: Measurements, round: Round) -> dict[str, Any]:
    return {
        "round": round,
        "messages": [
            {"ranks": list(each.ranks), "bytes": each.num_bytes, "seconds": list(each.seconds)}
            for each in measured.pairs
            if each.round is round
        ],
    }


def _training(training: Training | None, judgement: Judgement) -> dict[str, Any] | None:
    if training is None:
        return None
    predicted = judgement.prediction
    return {
        "steps": training.steps,
        "measured_step_seconds": training.step_seconds,
        "predicted_step_seconds": None if predicted is None else predicted.expected_seconds,
    }


def _pipeline(judged: PipelineJudgement, training: Training | None) -> dict[str, Any]:
    return {
        "schedule": None if training is None else training.schedule,
        "microbatches": None if training is None else training.microbatches,
        "measured_bubble_ratio": judged.measured_ratio,
        "theory_bubble_ratio": judged.theory_ratio,
        "predicted_bubble_ratio": judged.predicted_ratio,
        "predicted_pipeline_seconds": judged.predicted_seconds,
        "alarm_ratio": judged.alarm_ratio,
        "stages": [
            {
                "stage": stage.stage,
                "ranks": list(stage.ranks),
                "bubble_ratio": stage.bubble_ratio,
                "seconds": {round.value: dict(stage.seconds[round]) for round in Round},
            }
            for stage in (() if training is None else training.stages)
        ],
        "remedies": [asdict(remedy) | {"settings": dict(remedy.settings)} for remedy in judged.remedies],
    }
