"""Analysis -> the document of `schema`, and the document as JSON text."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from traincope.analysis import (
    Analysis,
    Bubble,
    DeviceStall,
    ExpertLoads,
    Fault,
    Goodput,
    Ledger,
    MemoryUse,
    RankLedger,
    Stragglers,
    Utilization,
    dropped_steps,
    guessed_steps,
    in_a_row,
    own_time,
)
from traincope.report import schema
from traincope.report.findings import finding_of
from traincope.report.lost import lost
from traincope.report.operations import operations
from traincope.report.path import critical_path
from traincope.report.priced import costs, priced
from traincope.report.timetable import timetable_rows
from traincope.report.traced import gpu, kernels
from traincope.store import RankRecords
from traincope.timeline import OpenRecord, Timeline


def to_json(document: schema.Document) -> str:
    """`document` as indented ASCII JSON with keys in the order of the schema, ending in a newline.

    ASCII because names from a run may hold anything: control characters stay escaped, so the text
    is safe on a terminal. Raises ValueError for a NaN or infinity: missing must be null.
    """
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_document(analysis: Analysis, *, price_per_gpu_hour: float | None = None) -> schema.Document:
    """Everything the analysis says, in the fixed shape; where it could not say, null.

    `price_per_gpu_hour`, in any currency, puts a price on the ledger's terms, on losses by cause, and on what
    findings would save.
    """
    document = _document(analysis)
    return document if price_per_gpu_hour is None else priced(document, price_per_gpu_hour=price_per_gpu_hour)


def _document(analysis: Analysis) -> schema.Document:
    timeline, ledger = analysis.timeline, analysis.ledger
    counted = ledger.rank_steps > 0
    return schema.Document(
        schema_version=schema.SCHEMA_VERSION,
        run=_run(analysis),
        verdict=[finding_of(finding, wall_ns=ledger.wall_ns) for finding in analysis.verdict],
        ledger=_ledger(ledger, costs(analysis), analysis.device_stalls) if counted else None,
        utilization=_utilization(analysis.utilization, analysis.experts),
        comm=operations(analysis.comm) or None,
        bubble=_bubble(analysis.bubble) if counted and analysis.bubble else None,
        stragglers=_stragglers(analysis.stragglers) if counted else None,
        faults=[_fault(fault, last_ns=_last_ns(timeline)) for fault in analysis.faults],
        goodput=None if analysis.goodput is None else _goodput(analysis.goodput),
        memory=[_memory(use) for use in analysis.memory] or None,
        kernels=None if analysis.kernels is None else kernels(analysis.kernels),
        critical_path=None if analysis.critical_path is None else critical_path(analysis.critical_path),
        data_order=None,
        gpu_partition=[gpu(partition) for partition in analysis.gpu_partition] or None,
        clock=[
            schema.RankClock(
                rank=clock.rank,
                offset_ns=clock.offset_ns,
                bound_ns=clock.bound_ns,
                drift_ppm=clock.drift_ppm,
                source=clock.source.value,
            )
            for clock in timeline.clocks
        ],
        recorder=_recorder(timeline, unwatched=analysis.ledger.unwatched_steps),
    )


def _run(analysis: Analysis) -> schema.Run:
    timeline, ledger = analysis.timeline, analysis.ledger
    run = timeline.run
    return schema.Run(
        id=run.info.id,
        imported=run.info.imported,
        world_size=run.info.world_size,
        mesh_axes=dict(run.info.mesh),
        attempts=run.attempts,
        steps=len({int(number) for rank in ledger.ranks for number in rank.numbers[rank.counted]}),
        excluded_steps=list(ledger.excluded_steps),
        guessed_steps=guessed_steps(timeline),
        step_ns=analysis.median_step_ns,
        start=run.info.started_wall_ns,
        end=timeline.end_ns if timeline.ranks else None,
        versions=dict(run.info.versions),
        missing_ranks=list(run.missing),
    )


def _ledger(ledger: Ledger, cost: schema.Cost, on_device: Sequence[DeviceStall] | None) -> schema.Ledger:
    return schema.Ledger(
        ranks=[_rank_ledger(rank, order=ledger.order) for rank in ledger.ranks],
        wall_ns=ledger.wall_ns,
        terms={term: ledger.total(term) for term in ledger.order},
        rank_steps=ledger.rank_steps,
        unsplit_ns=sum(ledger.unsplit().values()),
        unsplit=[schema.Unsplit(axis=axis, reason=why, ns=ns) for (axis, why), ns in ledger.unsplit().items()],
        waterfall={term: ledger.share(term) for term in ledger.order},
        evaluation_ns=ledger.evaluation_ns,
        evaluation_ratio=ledger.evaluation_ratio,
        device_stalls=None if on_device is None else [_device_stall(one, ledger.wall_ns) for one in on_device],
        cost=cost,
    )


def _device_stall(stall: DeviceStall, wall_ns: int) -> schema.DeviceStall:
    ratio = stall.total_ns / wall_ns
    return schema.DeviceStall(axis=stall.axis, count=stall.count, total_ns=stall.total_ns, ratio=ratio)


def _rank_ledger(rank: RankLedger, *, order: tuple[str, ...]) -> schema.RankLedger:
    return schema.RankLedger(
        rank=rank.rank,
        steps=rank.num_counted,
        wall_ns=rank.total_wall_ns,
        terms={term: rank.total(term) for term in order},
    )


def _utilization(utilization: Utilization, experts: ExpertLoads | None) -> schema.Utilization:
    ratios, work, peak = utilization.ratios, utilization.work, utilization.peak
    return schema.Utilization(
        mfu=ratios.mfu,
        mfu_paper=ratios.mfu_paper,
        mfu_job=ratios.mfu_job,
        mfu_job_reason=utilization.job_reason,
        hfu=ratios.hfu,
        tokens_per_second=utilization.tokens_per_second,
        flops_convention=work.convention,
        reason=utilization.reason,
        model_flops_per_step=work.model,
        executed_flops_per_step=work.executed,
        recomputed_flops_per_step=work.recomputed,
        redundant_flops_per_step=work.redundant,
        coverage_ratio=work.coverage_ratio,
        ideal_ns=None if ratios.ideal_ns is None else dict(ratios.ideal_ns),
        waterfall=None if ratios.waterfall is None else dict(ratios.waterfall),
        peak_flops=None if peak is None else dict(peak.flops),
        peak_source=None if peak is None else f"{peak.device}: {peak.source}",
        experts=None if experts is None else _experts(experts),
    )


def _experts(experts: ExpertLoads) -> schema.Experts:
    return schema.Experts(
        layers=[
            schema.ExpertLayer(
                layer=layer.layer, tokens=list(layer.tokens), hottest=layer.hottest, hottest_ratio=layer.ratio
            )
            for layer in experts.layers
        ],
        dropped_ratio=experts.dropped_ratio,
        padding_ratio=experts.padding_ratio,
    )


def _bubble(bubble: Bubble) -> schema.Bubble:
    return schema.Bubble(
        schedule=bubble.schedule,
        microbatches=bubble.num_microbatches,
        stages_per_rank=bubble.chunks,
        stages=[
            schema.Stage(
                stage=stage.stage,
                others=list(stage.others),
                ranks=list(stage.ranks),
                schedule_ns=stage.schedule_ns,
                imbalance_ns=stage.imbalance_ns,
                jitter_ns=stage.jitter_ns,
                wall_ns=stage.wall_ns,
                fraction_ratio=stage.fraction_ratio,
            )
            for stage in bubble.stages
        ],
        fraction_ratio=bubble.fraction_ratio,
        theory_ratio=bubble.theory_ratio,
        replay_ratio=bubble.replay_ratio,
        timetable_step=bubble.step,
        timetable=timetable_rows(bubble.timetable),
    )


def _stragglers(stragglers: Stragglers) -> schema.Stragglers:
    return schema.Stragglers(
        named=[
            schema.Straggler(
                rank=named.rank,
                confidence=named.confidence,
                caused_ratio=named.caused_share,
                excess_ratio=named.excess_ratio,
            )
            for named in stragglers.named
        ],
        ranks=[
            schema.RankWait(
                rank=rank.rank,
                compute_ns=rank.compute_ns,
                own_wait_ns=rank.own_wait_ns,
                caused_wait_ns=rank.caused_wait_ns,
            )
            for rank in stragglers.ranks
        ],
    )


def _last_ns(timeline: Timeline) -> Mapping[int, int]:
    return {rank.rank: rank.last_ns for rank in timeline.ranks}


def _fault(fault: Fault, *, last_ns: Mapping[int, int]) -> schema.Fault:
    return schema.Fault(
        kind=fault.kind.value,
        mark=fault.is_mark,
        at_ns=fault.at_ns,
        ranks=list(fault.ranks),
        step=fault.step,
        what=fault.what,
        evidence=fault.evidence,
        confidence=fault.confidence,
        lasted_ns=fault.lasted_ns,
        follows=fault.follows,
        open_records=[_open_record(record, last_ns=last_ns[fault.ranks[0]]) for record in fault.open_records],
    )


def _goodput(goodput: Goodput) -> schema.Goodput:
    return schema.Goodput(
        attempts=[
            schema.Attempt(
                attempt=one.number,
                began=one.began_ns,
                first_step=one.first_step_ns,
                last=one.last_ns,
                steps=one.num_steps,
                clean=one.clean,
            )
            for one in goodput.attempts
        ],
        elapsed_ns=goodput.elapsed_ns,
        steps_done=goodput.steps_done,
        steps_ns=goodput.steps_ns,
        steps_lost=goodput.steps_lost,
        lost_ns=goodput.lost_ns,
        reason=goodput.reason,
        startup_ns=goodput.startup_ns,
        restart_ns=goodput.restart_ns,
        checkpoint_stall_ns=goodput.checkpoint_stall_ns,
        evaluation_ns=goodput.evaluation_ns,
        other_ns=goodput.other_ns,
        productive_ns=goodput.productive_ns,
        productive_ratio=goodput.productive_ratio,
    )


def _memory(use: MemoryUse) -> schema.MemoryUse:
    return schema.MemoryUse(
        rank=use.rank,
        measure=use.measure,
        last_bytes=use.last_bytes,
        peak_bytes=use.peak_bytes,
        phases=dict(use.phases),
        growth_bytes_per_step=use.growth_bytes_per_step,
        leak=use.leak,
    )


def _open_record(record: OpenRecord, *, last_ns: int) -> schema.OpenRecord:
    return schema.OpenRecord(
        what=record.what, axis=record.axis, step=record.step, duration_ns=last_ns - record.start_ns
    )


def _recorder(timeline: Timeline, *, unwatched: Sequence[int]) -> schema.Recorder:
    ranks, own = timeline.run.ranks, own_time(timeline)
    return schema.Recorder(
        events=sum(len(segment.records) for rank in ranks for segment in rank.segments),
        dropped=sum(rank.dropped for rank in ranks),
        lost=lost(ranks),
        dropped_steps=[list(ends) for ends in dropped_steps(timeline)],
        unwatched_steps=[list(ends) for ends in in_a_row(unwatched)],
        overhead_seconds=None if own is None else own.total_ns / 1e9,
        overhead_seconds_per_step=None if own is None else own.per_step_ns / 1e9,
        overhead_ratio=None if own is None else own.ratio,
        probes=_probes(ranks),
        problems=[*timeline.run.problems, *(p for rank in ranks for p in rank.problems), *timeline.traces.problems],
    )


def _probes(ranks: tuple[RankRecords, ...]) -> list[schema.Probe]:
    """Ranks that say the same of a probe are one entry."""
    said: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for name, state in rank.info.probes.items():
            said[name, state].append(rank.rank)
    return [schema.Probe(name=name, state=state, ranks=who) for (name, state), who in said.items()]
