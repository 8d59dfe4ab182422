"""A small run by hand: 2 ranks of a 2-stage pipeline, a warm-up step and 3 counted steps of 100 ms.

`analysis()` is the run as results, `document()` what it must become: the sums of the 3 counted
steps, 600 ms over both ranks. The warm-up step 0 is ten times a counted one and enters no sum.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from traincope import analysis as results
from traincope.analysis.context import Context
from traincope.analysis.efficiency.utilization import utilization
from traincope.analysis.ledger.sampling import NOT_SAMPLED
from traincope.analysis.stragglers.patterns import Shape
from traincope.report import schema
from traincope.report.document.recording_losses import LOSSES
from traincope.store import RECORD_DTYPE, RankRecords, RunRecords, SegmentRecords
from traincope.store.job.manifests import RankInfo, RunInfo
from traincope.timeline import ClockSource, RankClock, RankTimeline, Timeline
from traincope.timeline.clocks.offsets import Offsets
from traincope.topology import Host, RankCoord

MS = 1_000_000
HOUR_NS = 3_600_000_000_000
START_NS = 1_800_000_000_000_000_000
END_NS = START_NS + 1_000 * MS

STEP_RANK_0: dict[str, int | None] = {
    "forward": 25 * MS,
    "backward": 40 * MS,
    "recompute": 0,
    "optimizer": 2 * MS,
    "exposed_transfer[pp]": 3 * MS,
    "exposed_wait[fsdp]": 5 * MS,
    "bubble.schedule": 20 * MS,
    "bubble.imbalance": 4 * MS,
    "bubble.jitter": -1 * MS,
    "data_wait": 0,
    "exposed_memory": None,
    "launch_gap": None,
    "kernel_wait": None,
    "unattributed": 2 * MS,
}
"""One step of rank 0: 100 ms."""
STEP_RANK_1 = STEP_RANK_0 | {"forward": 30 * MS, "exposed_wait[fsdp]": 0}

EVIDENCE = "23.0 % of step time is pipeline idle; 1F1B with 4 microbatches cannot go below 20.0 %."
ADVICE = "Use 8 microbatches: theory falls to 11.1 %."


def analysis() -> results.Analysis:
    ledger = results.Ledger(
        ranks=(_rank_ledger(0, STEP_RANK_0), _rank_ledger(1, STEP_RANK_1)),
        order=tuple(STEP_RANK_0),
        excluded_steps=(0,),
    )
    return results.Analysis(
        context=Context(timeline()),
        began_ns=START_NS,
        ledger=ledger,
        comm=(
            results.AxisOperation(
                axis="pp",
                operation="send",
                count=24,
                num_bytes=24 << 20,
                transfer_ns=18 * MS,
                wait_ns=0,
                exposed_ns=18 * MS,
                bus_bandwidth=1.398e9,
            ),
            results.AxisOperation(
                axis="fsdp",
                operation="all_gather",
                count=48,
                num_bytes=96 << 20,
                transfer_ns=6 * MS,
                wait_ns=15 * MS,
                exposed_ns=15 * MS,
                bus_bandwidth=None,
            ),
        ),
        bubble=results.Bubble(
            schedule="1f1b",
            num_stages=2,
            num_microbatches=4,
            stages=tuple(_stage(stage) for stage in (0, 1)),
            theory_ratio=0.2,
            replay_ratio=0.2,
        ),
        stragglers=results.Stragglers(
            ranks=(
                results.RankWait(
                    rank=0, compute_ns=201 * MS, own_ns=207 * MS, own_wait_ns=15 * MS, straggler_wait_ns=0
                ),
                results.RankWait(
                    rank=1, compute_ns=216 * MS, own_ns=222 * MS, own_wait_ns=0, straggler_wait_ns=15 * MS
                ),
            ),
            named=(
                results.Straggler(
                    rank=1,
                    confidence="high",
                    caused_share=0.05,
                    excess_ratio=0.07,
                    late_ns=5 * MS,
                    gain_ratio=0.05,
                    terms=(results.TermExcess(term="forward", own_ns=25 * MS, peers_ns=20 * MS),),
                    pattern=results.Pattern(
                        shape=Shape.STEADY,
                        first_step=None,
                        last_step=None,
                        period_steps=None,
                        growth_ns_per_100_steps=None,
                        late_steps=3,
                    ),
                    usage=results.HostUsage(
                        core_wait_ns=4 * MS,
                        peers_core_wait_ns=1 * MS,
                        major_faults=0,
                        peers_major_faults=0,
                        cpu_ns=8 * MS,
                        peers_cpu_ns=7 * MS,
                    ),
                ),
            ),
            steps=3,
            steps_needed=3,
        ),
        utilization=utilization(timeline(), ledger, None, experts=None),
        sampling=replace(NOT_SAMPLED, steps=3, sampled_steps=3, first_sampled=1, last_sampled=3, windows=1),
        verdict=(
            results.Finding(
                kind=results.FindingKind.PIPELINE_BUBBLE,
                confidence="high",
                evidence=EVIDENCE,
                advice=ADVICE,
                estimated_gain_ratio=0.089,
            ),
        ),
    )


def apart(result: results.Analysis, *, bound_ns: int | None = 80_000, drift_ns: int = 0) -> results.Analysis:
    """The same with rank 1 on another host. Its clock has this error against rank 0's, and drift in a second."""
    knots = Offsets(
        at_ns=np.array([0, 1_000 * MS]),
        offset_ns=np.array([0, drift_ns]),
        bound_ns=np.array([bound_ns or 0, bound_ns or 0]),
    )
    source = ClockSource.WALL_CLOCKS if bound_ns is None else ClockSource.MESSAGES
    first, second = result.timeline.clocks
    clocks = (first, replace(second, source=source, corrections=(knots,)))
    return replace(result, context=Context(replace(result.timeline, clocks=clocks)))


def without_steps() -> results.Analysis:
    """Records, but no complete step."""
    ledger = results.Ledger(ranks=(), order=(), excluded_steps=())
    return results.Analysis(
        context=Context(timeline()),
        began_ns=START_NS,
        ledger=ledger,
        comm=(),
        bubble=None,
        stragglers=results.Stragglers(ranks=(), named=()),
        utilization=utilization(timeline(), ledger, None, experts=None),
        verdict=(
            results.Finding(
                kind=results.FindingKind.NO_STEPS,
                confidence="unknown",
                evidence="no step was recorded",
                advice="run longer",
            ),
        ),
    )


def timeline() -> Timeline:
    run = RunRecords(
        path=Path("demo"),
        info=RunInfo(
            id="demo-7f3a",
            world_size=2,
            mesh={"pp": 2},
            started_wall_ns=START_NS,
            versions={"torch": "2.13.0"},
            command="train.py",
            settings={},
        ),
        ranks=(_rank_records(0, events=1_000), _rank_records(1, events=234)),
        attempts=1,
        missing=(),
        problems=(),
    )
    clocks = tuple(RankClock(rank=rank) for rank in (0, 1))
    return Timeline(run=run, ranks=(rank_timeline(0), rank_timeline(1)), clocks=clocks)


def rank_timeline(rank: int) -> RankTimeline:
    return RankTimeline(
        rank=rank,
        coords={"pp": rank},
        ending="clean",
        names=(),
        groups=(),
        threads={"main": np.empty(0, dtype=RECORD_DTYPE)},
        steps=(),
        open_step=None,
        open_records=(),
        last_ns=END_NS,
    )


def _rank_records(rank: int, *, events: int) -> RankRecords:
    records = np.zeros(events, dtype=RECORD_DTYPE)
    return RankRecords(
        attempt=0,
        info=RankInfo(
            version=2,
            coord=RankCoord(rank=rank, coords={"pp": rank}),
            host=Host(name="node", boot_id="boot"),
            pid=100 + rank,
            started_wall_ns=START_NS,
            ended_wall_ns=END_NS,
            ending="clean",
            probes={"c10d": "on"},
            recorder={"events": events, "dropped": 0},
        ),
        names=(),
        groups=(),
        segments=(SegmentRecords(thread="main", index=0, records=records, lost_bytes=0),),
        problems=(),
    )


def _rank_ledger(rank: int, step: dict[str, int | None]) -> results.RankLedger:
    scale = np.array([10, 1, 1, 1], dtype=np.int64)
    return results.RankLedger(
        rank=rank,
        numbers=np.arange(4, dtype=np.int64),
        wall_ns=100 * MS * scale,
        terms={term: None if ns is None else ns * scale for term, ns in step.items()},
        ambiguous_waits={},
        counted=np.array([False, True, True, True]),
        light=np.zeros(4, dtype=bool),
        detailed=np.array([False, True, True, True]),
    )


def _stage(stage: int) -> results.StageBubble:
    return results.StageBubble(
        stage=stage,
        slowest=stage,
        ranks=(stage,),
        schedule_ns=60 * MS,
        imbalance_ns=12 * MS,
        jitter_ns=-3 * MS,
        wall_ns=300 * MS,
    )


def document() -> schema.Document:
    """The expected document of `analysis()`."""
    return {
        "schema_version": 3,
        "run": {
            "id": "demo-7f3a",
            "imported": False,
            "world_size": 2,
            "mesh_axes": {"pp": 2},
            "attempts": 1,
            "attempt": 0,
            "later_attempts": 0,
            "training_step_offset": None,
            "steps": 3,
            "excluded_steps": [0],
            "guessed_steps": 0,
            "backward_steps": 0,
            "step_ns": 100 * MS,
            "mean_step_ns": 100 * MS,
            "start": START_NS,
            "end": END_NS,
            "versions": {"torch": "2.13.0"},
            "missing_ranks": [],
        },
        "verdict": [
            {
                "kind": "pipeline_bubble",
                "page": "docs/findings/imbalance.md#the-pipeline-idles",
                "ranks": [],
                "steps": [],
                "confidence": "high",
                "evidence": EVIDENCE,
                "advice": ADVICE,
                "estimated_gain_ratio": 0.089,
                "gain_at_most": False,
                "estimated_gain_rank_hours": 0.089 * 600 * MS / HOUR_NS,
                "estimated_gain_money": None,
            }
        ],
        "ledger": {
            "ranks": [
                {"rank": 0, "steps": 3, "wall_ns": 300 * MS, "terms": _three(STEP_RANK_0)},
                {"rank": 1, "steps": 3, "wall_ns": 300 * MS, "terms": _three(STEP_RANK_1)},
            ],
            "wall_ns": 600 * MS,
            "terms": {
                "forward": 165 * MS,
                "backward": 240 * MS,
                "recompute": 0,
                "optimizer": 12 * MS,
                "exposed_transfer[pp]": 18 * MS,
                "exposed_wait[fsdp]": 15 * MS,
                "bubble.schedule": 120 * MS,
                "bubble.imbalance": 24 * MS,
                "bubble.jitter": -6 * MS,
                "data_wait": 0,
                "exposed_memory": None,
                "launch_gap": None,
                "kernel_wait": None,
                "unattributed": 12 * MS,
            },
            "clock": "host",
            "host_hidden_wait": None,
            "host_clock_reason": None,
            "run_ahead": None,
            "rank_steps": 6,
            "timed_steps": 3,
            "ambiguous_waits_ns": 0,
            "ambiguous_waits": [],
            "waterfall": {
                "forward": 0.275,
                "backward": 0.4,
                "recompute": 0.0,
                "optimizer": 0.02,
                "exposed_transfer[pp]": 0.03,
                "exposed_wait[fsdp]": 0.025,
                "bubble.schedule": 0.2,
                "bubble.imbalance": 0.04,
                "bubble.jitter": -0.01,
                "data_wait": 0.0,
                "exposed_memory": None,
                "launch_gap": None,
                "kernel_wait": None,
                "unattributed": 0.02,
            },
            "evaluation_ns": 0,
            "evaluation_ratio": 0.0,
            "device_stalls": None,
            "cost": {
                "wall_rank_hours": 600 * MS / HOUR_NS,
                "rank_hours": {
                    "forward": 165 * MS / HOUR_NS,
                    "backward": 240 * MS / HOUR_NS,
                    "recompute": 0.0,
                    "optimizer": 12 * MS / HOUR_NS,
                    "exposed_transfer[pp]": 18 * MS / HOUR_NS,
                    "exposed_wait[fsdp]": 15 * MS / HOUR_NS,
                    "bubble.schedule": 120 * MS / HOUR_NS,
                    "bubble.imbalance": 24 * MS / HOUR_NS,
                    "bubble.jitter": -6 * MS / HOUR_NS,
                    "data_wait": 0.0,
                    "exposed_memory": None,
                    "launch_gap": None,
                    "kernel_wait": None,
                    "unattributed": 12 * MS / HOUR_NS,
                },
                "price_per_gpu_hour": None,
                "currency": None,
                "wall_money": None,
                "money": None,
                "losses": [
                    _loss("bubble.schedule", "stage 0", 60 * MS),
                    _loss("bubble.schedule", "stage 1", 60 * MS),
                    _loss("straggler_wait", "rank 1", 15 * MS),
                    _loss("bubble.imbalance", "stage 0", 12 * MS),
                    _loss("bubble.imbalance", "stage 1", 12 * MS),
                    _loss("bubble.jitter", "stage 0", -3 * MS),
                    _loss("bubble.jitter", "stage 1", -3 * MS),
                ],
            },
        },
        "causes": [
            _by_stage("bubble.schedule", 60 * MS),
            _by_stage("bubble.imbalance", 12 * MS),
            _by_stage("bubble.jitter", -3 * MS),
        ],
        "utilization": {
            "mfu": None,
            "mfu_paper": None,
            "mfu_job": None,
            "mfu_job_reason": "no FLOPs are recorded",
            "hfu": None,
            "tokens_per_second": None,
            "flops_convention": None,
            "reason": "no FLOPs are recorded",
            "model_flops_per_step": None,
            "executed_flops_per_step": None,
            "recomputed_flops_per_step": None,
            "redundant_flops_per_step": None,
            "coverage_ratio": None,
            "ideal_ns": None,
            "waterfall": None,
            "peak_flops": None,
            "peak_source": None,
            "experts": None,
        },
        "energy": {
            "joules_per_step": None,
            "watts": None,
            "kwh": None,
            "terms": None,
            "gpus": [],
            "price_per_kwh": None,
            "currency": None,
            "money": None,
            "reason": "a part of a run has no energy",
        },
        "rollouts": None,
        "comm": [
            {
                "axis": "pp",
                "op": "send",
                "count": 24,
                "bytes": 24 << 20,
                "transfer_ns": 18 * MS,
                "wait_ns": 0,
                "exposed_ns": 18 * MS,
                "bus_bandwidth_bytes_per_second": 1.398e9,
                "message_imbalance": None,
                "contention": [],
            },
            {
                "axis": "fsdp",
                "op": "all_gather",
                "count": 48,
                "bytes": 96 << 20,
                "transfer_ns": 6 * MS,
                "wait_ns": 15 * MS,
                "exposed_ns": 15 * MS,
                "bus_bandwidth_bytes_per_second": None,
                "message_imbalance": None,
                "contention": [],
            },
        ],
        "bubble": {
            "schedule": "1f1b",
            "microbatches": 4,
            "stages_per_rank": 1,
            "stages": [
                {
                    "stage": stage,
                    "others": [],
                    "ranks": [stage],
                    "schedule_ns": 60 * MS,
                    "imbalance_ns": 12 * MS,
                    "jitter_ns": -3 * MS,
                    "wall_ns": 300 * MS,
                    "fraction_ratio": 0.23,
                }
                for stage in (0, 1)
            ],
            "fraction_ratio": 0.23,
            "theory_ratio": 0.2,
            "replay_ratio": 0.2,
            "timetable_step": None,
            "timetable": None,
        },
        "stragglers": {
            "named": [
                {
                    "rank": 1,
                    "confidence": "high",
                    "caused_ratio": 0.05,
                    "excess_ratio": 0.07,
                    "late_ns": 5 * MS,
                    "gain_ratio": 0.05,
                    "cause": "forward",
                    "terms": [{"term": "forward", "own_ns": 25 * MS, "peers_ns": 20 * MS}],
                    "pattern": {
                        "shape": "steady",
                        "first_step": None,
                        "last_step": None,
                        "period_steps": None,
                        "growth_ns_per_100_steps": None,
                        "late_steps": 3,
                    },
                    "usage": {
                        "core_wait_ns": 4 * MS,
                        "peers_core_wait_ns": 1 * MS,
                        "major_faults": 0,
                        "peers_major_faults": 0,
                        "cpu_ns": 8 * MS,
                        "peers_cpu_ns": 7 * MS,
                    },
                }
            ],
            "groups": [],
            "steps": 3,
            "steps_needed": 3,
            "ranks": [
                {"rank": 0, "compute_ns": 201 * MS, "own_wait_ns": 15 * MS, "straggler_wait_ns": 0},
                {"rank": 1, "compute_ns": 216 * MS, "own_wait_ns": 0, "straggler_wait_ns": 15 * MS},
            ],
        },
        "slowdown": None,
        "host_shortages": [],
        "faults": [],
        "hangs": [],
        "goodput": None,
        "reliability": None,
        "background_saves": None,
        "sampled_stacks": [],
        "memory": None,
        "memory_split": None,
        "grown_tensors": None,
        "out_of_memory": None,
        "memory_snapshots": None,
        "kernels": None,
        "critical_path": None,
        "data_order": None,
        "state_checks": None,
        "gpu_partition": None,
        "clock": [
            {"rank": rank, "offset_ns": 0, "bound_ns": 0, "drift_ppm": 0.0, "source": "same host"} for rank in (0, 1)
        ],
        "recorder": {
            "events": 1_234,
            "dropped": 0,
            "lost": dict.fromkeys(LOSSES),
            "dropped_steps": [],
            "unwatched_steps": [],
            "overhead_seconds": None,
            "overhead_seconds_per_step": None,
            "overhead_ratio": None,
            "sampling": {
                "steps": 3,
                "sampled_steps": 3,
                "first_sampled": 1,
                "last_sampled": 3,
                "windows": 1,
                "budget_ratio": None,
                "own_ratio": None,
                "requested": [],
                "measured_overhead": None,
            },
            "probes": [{"name": "c10d", "state": "on", "ranks": [0, 1]}],
            "problems": [],
        },
    }


def _by_stage(term: str, ns: int) -> schema.TermCauses:
    """The bubble's term, half of it in each stage."""
    causes: list[schema.Cause] = [
        {"kind": term, "subject": f"stage {stage}", "ns": ns, "ratio": 0.5, "basis": "measured"} for stage in (0, 1)
    ]
    return {"scope": "steps", "terms": [term], "ns": 2 * ns, "causes": causes, "rest_ns": 0}


def _loss(kind: str, subject: str, ns: int) -> schema.Loss:
    return {"kind": kind, "subject": subject, "scope": "steps", "ns": ns, "rank_hours": ns / HOUR_NS, "money": None}


def _three(step: dict[str, int | None]) -> schema.Terms:
    return {term: None if ns is None else 3 * ns for term, ns in step.items()}
