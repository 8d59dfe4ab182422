"""Convert an analysis to the document of `schema`, and the document to JSON text."""

import json
from collections import defaultdict
from collections.abc import Mapping

from traincope.analysis import (
    Analysis,
    Fault,
    RankLedger,
    TermCauses,
    backward_steps,
    consecutive_ranges,
    dropped_steps,
    guessed_steps,
    recorder_overhead,
    term_causes,
)
from traincope.explanations import explanations
from traincope.report import schema
from traincope.report.document.costs import cost_of, with_energy_price, with_price
from traincope.report.document.parts import finding_of, kernels
from traincope.report.document.recording_losses import count_losses
from traincope.store import RankRecords
from traincope.timeline import OpenRecord, Timeline
from traincope.units import CURRENCY


def to_json(document: schema.Document) -> str:
    """`document` as indented ASCII JSON with keys in the order of the schema, ending in a newline.

    ASCII because names from a run may hold anything: control characters stay escaped, so the text
    is safe on a terminal. Raises ValueError for a NaN or infinity: missing must be null.
    """
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_document(
    analysis: Analysis,
    *,
    price_per_gpu_hour: float | None = None,
    price_per_kwh: float | None = None,
    currency: str = CURRENCY,
) -> schema.Document:
    """Return all results of the analysis in the fixed shape; null means no evidence.

    `price_per_gpu_hour` adds prices to the ledger's terms, to losses by cause and to the estimated gains of findings.
    `price_per_kwh` adds the price of the GPUs' energy. Both are in `currency`.
    """
    document = _document(with_energy_price(analysis, price_per_kwh=price_per_kwh, currency=currency))
    if price_per_gpu_hour is None:
        return document
    return with_price(document, price_per_gpu_hour=price_per_gpu_hour, currency=currency)


def _document(analysis: Analysis) -> schema.Document:
    timeline, ledger = analysis.timeline, analysis.ledger
    counted = ledger.rank_steps > 0
    return schema.Document(
        schema_version=schema.SCHEMA_VERSION,
        run=_run(analysis),
        verdict=[finding_of(finding, wall_ns=ledger.timed_wall_ns) for finding in analysis.verdict],
        ledger=_ledger(analysis, cost_of(analysis)) if counted else None,
        causes=[_causes(each) for each in term_causes(analysis)],
        utilization=schema.plain(analysis.utilization),
        energy=schema.plain(analysis.energy),
        rollouts=schema.plain(analysis.rollouts),
        comm=schema.plain(analysis.comm) or None,
        bubble=schema.plain(analysis.bubble) if counted else None,
        stragglers=schema.plain(analysis.stragglers) if counted else None,
        slowdown=schema.plain(analysis.slowdown),
        host_shortages=schema.plain(analysis.host_shortages),
        faults=[_fault(fault, last_ns=_last_ns(timeline)) for fault in analysis.faults],
        hangs=schema.plain(analysis.hangs),
        goodput=schema.plain(analysis.goodput),
        reliability=schema.plain(analysis.reliability),
        background_saves=schema.plain(analysis.background_saves),
        sampled_stacks=schema.plain([window for window in analysis.sampled_windows if not window.early]),
        memory=schema.plain(analysis.memory) or None,
        memory_split=schema.plain([each.peak for each in analysis.memory_splits]) or None,
        grown_tensors=schema.plain(analysis.grown_tensors) or None,
        out_of_memory=schema.plain(analysis.out_of_memory) or None,
        memory_snapshots=schema.plain(analysis.memory_snapshots) or None,
        kernels=None
        if analysis.kernels is None
        else kernels(analysis.kernels, analysis.queue_lengths, analysis.unfused),
        critical_path=schema.plain(analysis.critical_path),
        data_order=schema.plain(analysis.data_order),
        state_checks=schema.plain(analysis.state_checks),
        gpu_partition=schema.plain(analysis.gpu_partition) or None,
        clock=schema.plain(timeline.clocks),
        recorder=_recorder(analysis),
    )


def _run(analysis: Analysis) -> schema.Run:
    timeline, ledger = analysis.timeline, analysis.ledger
    run = timeline.run
    return schema.convert(
        run.info,
        schema.Run,
        attempts=run.attempts,
        attempt=run.last_attempt,
        later_attempts=run.later_attempts,
        training_step_offset=analysis.training_step_offset,
        steps=len({int(number) for rank in ledger.ranks for number in rank.numbers[rank.timed]}),
        excluded_steps=list(ledger.excluded_steps),
        guessed_steps=guessed_steps(timeline),
        backward_steps=backward_steps(timeline),
        step_ns=analysis.median_step_ns,
        mean_step_ns=ledger.mean_step_ns,
        end=analysis.end_ns,
        missing_ranks=list(run.missing),
    )


def _ledger(analysis: Analysis, cost: schema.Cost) -> schema.Ledger:
    ledger = analysis.ledger
    waits = ledger.ambiguous_waits()
    return schema.convert(
        ledger,
        schema.Ledger,
        ranks=[_rank_ledger(rank, order=ledger.order) for rank in ledger.ranks],
        terms={term: ledger.total(term) for term in ledger.order},
        ambiguous_waits_ns=sum(waits.values()),
        ambiguous_waits=[schema.AmbiguousWait(axis=axis, reason=why, ns=ns) for (axis, why), ns in waits.items()],
        waterfall={term: ledger.share(term) for term in ledger.order},
        device_stalls=schema.plain(analysis.device_stalls),
        host_hidden_wait=schema.plain(analysis.host_hidden_waits),
        host_clock_reason=analysis.why_on_host,
        run_ahead=schema.plain(analysis.run_ahead),
        cost=cost,
    )


def _causes(of: TermCauses) -> schema.TermCauses:
    causes = [schema.convert(cause, schema.Cause, ratio=cause.ns / of.ns if of.ns else None) for cause in of.causes]
    return schema.convert(of, schema.TermCauses, causes=causes)


def _rank_ledger(rank: RankLedger, *, order: tuple[str, ...]) -> schema.RankLedger:
    return schema.convert(rank, schema.RankLedger, terms={term: rank.total(term) for term in order})


def _last_ns(timeline: Timeline) -> Mapping[int, int]:
    return {rank.rank: rank.last_ns for rank in timeline.ranks}


def _fault(fault: Fault, *, last_ns: Mapping[int, int]) -> schema.Fault:
    records = [_open_record(record, last_ns=last_ns[fault.ranks[0]]) for record in fault.open_records]
    return schema.convert(fault, schema.Fault, page=explanations()[fault.kind].place, open_records=records)


def _open_record(record: OpenRecord, *, last_ns: int) -> schema.OpenRecord:
    return schema.convert(record, schema.OpenRecord, duration_ns=last_ns - record.start_ns)


def _recorder(analysis: Analysis) -> schema.Recorder:
    timeline, ledger = analysis.timeline, analysis.ledger
    ranks, recorder_time = timeline.run.ranks, recorder_overhead(timeline)
    return schema.Recorder(
        events=sum(len(segment.records) for rank in ranks for segment in rank.segments),
        dropped=sum(rank.dropped for rank in ranks),
        lost=count_losses(ranks),
        dropped_steps=[list(ends) for ends in dropped_steps(timeline)],
        unwatched_steps=[list(ends) for ends in consecutive_ranges(ledger.unwatched_steps)],
        overhead_seconds=None if recorder_time is None else recorder_time.total_ns / 1e9,
        overhead_seconds_per_step=None if recorder_time is None else recorder_time.per_step_ns / 1e9,
        overhead_ratio=None if recorder_time is None else recorder_time.ratio,
        sampling=schema.plain(analysis.sampling),
        probes=_probes(ranks),
        problems=[*timeline.run.problems, *(p for rank in ranks for p in rank.problems), *timeline.traces.problems],
    )


def _probes(ranks: tuple[RankRecords, ...]) -> list[schema.Probe]:
    """One entry for all ranks on which a probe is in the same state."""
    ranks_by_state: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for name, state in rank.info.probes.items():
            ranks_by_state[name, state].append(rank.rank)
    return [schema.Probe(name=name, state=state, ranks=members) for (name, state), members in ranks_by_state.items()]
