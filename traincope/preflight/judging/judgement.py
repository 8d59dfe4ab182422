"""The judgement of a preflight: pass or fail of each host and of the job."""

from dataclasses import dataclass

from traincope.plan.layout.prediction import Prediction
from traincope.preflight.judging.costs import ConfiguredPipeline
from traincope.preflight.judging.findings import OF_THE_JOB, Finding
from traincope.preflight.judging.links import Way, link_findings
from traincope.preflight.judging.pipeline import PipelineJudgement, judge_pipeline
from traincope.preflight.judging.prediction import ConfiguredModel, link_fit, predict_step
from traincope.preflight.judging.ranks import slow_rank_findings
from traincope.preflight.judging.sweeps import Sweep, sweeps
from traincope.preflight.measurements import Measurements, Place, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """Facts of the configured training, without torch."""

    model: ConfiguredModel
    pipeline: ConfiguredPipeline | None = None
    """None without a pipeline."""
    message_bytes: int = 0
    """Bytes of a microbatch's activations that a stage sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJudgement:
    """One host."""

    host: str
    places: tuple[Place, ...]
    findings: tuple[Finding, ...]
    """Findings that name one of its ranks; of a link between two hosts, both have it."""

    @property
    def passed(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The whole job."""

    hosts: tuple[HostJudgement, ...]
    """In the order of their first ranks."""
    findings: tuple[Finding, ...]
    sweeps: tuple[Sweep, ...]
    pipeline: PipelineJudgement | None
    prediction: Prediction | None
    """Predicted step time, from measured rates and links."""
    comparable: bool
    """There are enough ranks to find an outlier."""

    @property
    def passed(self) -> bool:
        return not self.findings


MIN_COMPARABLE = 3
"""Fewest ranks among which one can be an outlier."""


def judge(measured: Measurements, configured: Configured, settings: Settings) -> Judgement:
    """Judge all measurements. The same measurements give the same judgement on each rank."""
    pipeline = None
    if measured.training is not None and configured.pipeline is not None:
        link = link_fit(measured, Way.BETWEEN) or link_fit(measured, Way.WITHIN)
        pipeline = judge_pipeline(
            measured.training,
            configured.pipeline,
            alarm_ratio=settings.alarm_ratio,
            message_seconds=0.0 if link is None else link.seconds(configured.message_bytes),
        )
    of_pipeline = () if pipeline is None else pipeline.findings
    findings = (*slow_rank_findings(measured), *link_findings(measured), *of_pipeline)
    return Judgement(
        hosts=_hosts(measured, findings),
        findings=findings,
        sweeps=sweeps(measured),
        pipeline=pipeline,
        prediction=predict_step(measured, configured.model),
        comparable=len(measured.places) >= MIN_COMPARABLE,
    )


def _hosts(measured: Measurements, findings: tuple[Finding, ...]) -> tuple[HostJudgement, ...]:
    of_hosts: dict[str, list[Place]] = {}
    for place in measured.places:
        of_hosts.setdefault(place.host, []).append(place)
    return tuple(
        HostJudgement(
            host=host,
            places=tuple(places),
            findings=tuple(
                finding
                for finding in findings
                if finding.kind not in OF_THE_JOB and {place.rank for place in places} & set(finding.ranks)
            ),
        )
        for host, places in of_hosts.items()
    )
