"""MFU and HFU of runs whose FLOPs, peaks and times are known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.analysis.efficiency.test_experts import logged
from tests.timeline.build import Row, clock, phase, rank, run, step
from traincope.analysis import Utilization, analyze, waterfall_of
from traincope.analysis.efficiency.declared_flops import CONFIGURED, FORMULA
from traincope.analysis.efficiency.utilization import IMPOSSIBLE
from traincope.analysis.efficiency.work import BY_GRAPHS, NEVER_COUNTED, NO_PRODUCT, REMEDY, TOO_SHORT
from traincope.events import Kind, Phase, Work
from traincope.record.compute.flops import BY_GRAPHS as RECORDED
from traincope.store import Attempt, RankRecords
from traincope.timeline import Timeline, build_timeline

A100 = {"name": "NVIDIA A100-SXM4-80GB", "count": 8}
"""312 TFLOP/s in bfloat16, 19.5 in float32."""
US = 1_000


def flops(in_phase: Phase, work: Work, count: int, *, dtype: str = "bfloat16", at: int = 1) -> Row:
    return Row(
        kind=Kind.FLOPS, start_ns=200 * US, end_ns=200 * US, name=dtype, phase=in_phase, step=at, tag=work, value=count
    )


STEPS = (step(0, 0, 100 * US), step(1, 100 * US, 200 * US), step(2, 200 * US, 300 * US))
"""The first is warm-up: two steps of 100 us count."""
COUNTED = (
    flops(Phase.FORWARD, Work.MATMUL, 2_000_000_000),
    flops(Phase.BACKWARD, Work.MATMUL, 4_000_000_000),
    flops(Phase.RECOMPUTE, Work.MATMUL, 1_000_000_000),
    flops(Phase.FORWARD, Work.CAUSAL_ATTENTION, 200_000_000),
    flops(Phase.BACKWARD, Work.CAUSAL_ATTENTION, 400_000_000),
    flops(Phase.BACKWARD, Work.CAUSAL_ATTENTION_AGAIN, 100_000_000),
    flops(Phase.FORWARD, Work.IMPLIED, 1000, dtype=""),
    flops(Phase.FORWARD, Work.COVERED, 1000, dtype=""),
)
"""6 GFLOP of products and 0.6 of causal attention; 1 recomputed by the training, 0.1 in the kernel."""


def on(records: RankRecords, device: dict[str, Any] = A100, *, probe: str | None = "on") -> RankRecords:
    probes = {} if probe is None else {"flops": probe}
    return replace(records, info=replace(records.info, device=device, probes=probes))


def utilization_of(*ranks: RankRecords, world_size: int | None = None, **settings: Any) -> Utilization:
    records = run(*ranks, world_size=world_size)
    records = replace(records, info=replace(records.info, settings=settings))
    return analyze(build_timeline(records)).utilization


def test_mfu_is_ideal_over_wall_time_in_every_convention() -> None:
    """In 100 us an A100 does 31.2 GFLOP; of recorded time only the last 2 of 3 steps are counted."""
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), tokens_per_step=64)
    assert result.reason is None
    ratios = result.ratios
    assert ratios.mfu == pytest.approx(6.3 / 31.2)
    assert ratios.mfu_paper == pytest.approx(6.6 / 31.2)
    assert ratios.hfu == pytest.approx(7.35 / 31.2)
    assert ratios.mfu_job == pytest.approx(6.3 / 31.2)
    assert ratios.ideal_ns == {"bfloat16": pytest.approx(6.3e9 / 312e12 * 1e9)}
    assert (result.work.model, result.work.executed, result.work.recomputed) == (6.3e9, 7.35e9, 1e9)
    assert result.work.redundant == pytest.approx(0.05e9)
    assert result.work.coverage_ratio == 1
    assert result.tokens_per_second == pytest.approx(64 / 100e-6)


def test_only_the_jobs_mfu_includes_pauses() -> None:
    """300 us of steps, then 100 us of evaluation."""
    pause = phase(Phase.EVALUATION, 300 * US, 400 * US)
    ratios = utilization_of(on(rank(0, *STEPS, *COUNTED, pause))).ratios
    assert ratios.mfu == pytest.approx(6.3 / 31.2)
    assert ratios.mfu_job == pytest.approx(3 * 6.3 / (4 * 31.2))


def attempt(*ranks: int, kept_steps: int | None = None) -> Attempt:
    """Three steps of 100 us, of which `kept_steps` were saved, and an exception."""
    return Attempt(
        number=0,
        began_ns=0,
        first_step_ns=0,
        last_ns=300 * US,
        num_steps=3,
        steps_ns=300 * US,
        kept_steps=kept_steps,
        kept_ns=100 * US * (kept_steps or 0),
        loaded=False,
        checkpoint_stall_ns=0,
        evaluation_ns=0,
        endings=dict.fromkeys(ranks, "ValueError"),
    )


LOAD = replace(phase(Phase.CHECKPOINT_STALL, 0, 0), name="load checkpoint")


def restarted(earlier: Attempt, *rows: Row) -> Utilization:
    """Another attempt of three steps, 100 us after the first."""
    last = replace(on(rank(0, clock(0, 400 * US), *rows, *STEPS, *COUNTED)), attempt=1)
    return analyze(build_timeline(replace(run(last), earlier=(earlier,)))).utilization


def test_the_jobs_mfu_counts_kept_steps_over_all_elapsed_time() -> None:
    """Five of six steps were kept; 300 us, 100 us and 300 us elapsed."""
    result = restarted(attempt(0, kept_steps=2), LOAD)
    assert result.ratios.mfu == pytest.approx(6.3 / 31.2)
    assert result.ratios.mfu_job == pytest.approx(5 * 6.3 / (7 * 31.2))
    assert (result.reason, result.job_reason) == (None, None)


@pytest.mark.parametrize(
    ("earlier", "rows", "reason"),
    [
        (attempt(0, kept_steps=2), (), "attempt 1 loaded no recorded checkpoint"),
        (attempt(0, 1, kept_steps=2), (LOAD,), "its attempts ran on different numbers of ranks (1, 2)"),
    ],
)
def test_without_known_kept_steps_only_the_jobs_mfu_is_null(
    earlier: Attempt, rows: tuple[Row, ...], reason: str
) -> None:
    result = restarted(earlier, *rows)
    assert result.ratios.mfu == pytest.approx(6.3 / 31.2)
    assert (result.reason, result.ratios.mfu_job) == (None, None)
    assert result.job_reason is not None
    assert result.job_reason.startswith(reason)


def test_every_dtype_is_compared_with_its_own_peak() -> None:
    """1.95 GFLOP in float32 take as long as 31.2 in bfloat16."""
    in_fp32 = flops(Phase.FORWARD, Work.MATMUL, 1_950_000_000, dtype="float32")
    assert utilization_of(on(rank(0, *STEPS, in_fp32))).ratios.mfu == pytest.approx(1)


def test_the_waterfall_splits_forward_and_backward_at_peak_and_sums_to_one() -> None:
    """In steps of 100 us: 30 forward, 50 backward with 5 recomputed in it, 10 optimizer."""
    work = [
        row
        for at in (1, 2)
        for row in (
            phase(Phase.FORWARD, at * 100 * US, (at * 100 + 30) * US, at=at),
            phase(Phase.BACKWARD, (at * 100 + 30) * US, (at * 100 + 80) * US, at=at),
            phase(Phase.RECOMPUTE, (at * 100 + 40) * US, (at * 100 + 45) * US, at=at),
            phase(Phase.OPTIMIZER, (at * 100 + 80) * US, (at * 100 + 90) * US, at=at),
        )
    ]
    waterfall = utilization_of(on(rank(0, *STEPS, *work, *COUNTED))).ratios.waterfall
    assert waterfall is not None
    assert waterfall["ideal"] == pytest.approx(6.3 / 31.2)
    assert waterfall["redundant_compute"] == pytest.approx(0.05 / 31.2)
    assert waterfall["kernel_inefficiency"] == pytest.approx(0.75 - 6.35 / 31.2)
    assert (waterfall["recompute"], waterfall["optimizer"], waterfall["unattributed"]) == (0.05, 0.1, 0.1)
    assert sum(share for share in waterfall.values() if share is not None) == pytest.approx(1)
    assert not {"forward", "backward"} & set(waterfall)


def test_ranks_are_summed_and_several_counts_averaged() -> None:
    """Rank 1 does 2 GFLOP in one counted step and 4 in the next."""
    uneven = [flops(Phase.FORWARD, Work.MATMUL, count * 10**9, at=at) for at, count in ((1, 2), (2, 4))]
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), on(rank(1, *STEPS, *uneven)))
    assert result.work.model == pytest.approx(9.3e9)
    assert result.ratios.mfu == pytest.approx(9.3 / 62.4)


def test_declared_flops_win_and_executed_flops_beyond_them_are_redundant() -> None:
    """7.35 GFLOP ran, 1 of them in recomputed forwards; the training needed 5."""
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), model_flops_per_step=5e9)
    assert result.ratios.mfu == pytest.approx(5 / 31.2)
    assert result.ratios.mfu_paper is None
    assert result.ratios.hfu == pytest.approx(7.35 / 31.2)
    assert result.work.redundant == pytest.approx(1.35e9)


def test_redundant_flops_are_unknown_if_the_model_declares_more_than_was_counted() -> None:
    """7.35 GFLOP ran by count, 1 of it recomputed: 6.35 cannot contain a model of 10, but one of 6.4 within 2 %."""
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), model_flops_per_step=10_000_000_000)
    assert (result.work.model, result.work.executed, result.work.redundant) == (10e9, 7.35e9, None)
    waterfall = result.ratios.waterfall
    assert waterfall is not None
    assert waterfall["redundant_compute"] is None
    assert sum(value for value in waterfall.values() if value is not None) == pytest.approx(1)
    close = utilization_of(on(rank(0, *STEPS, *COUNTED)), model_flops_per_step=6_400_000_000)
    assert close.work.redundant == pytest.approx(-0.05e9)


def test_logged_redundant_flops_are_not_model_flops() -> None:
    """Padding is in the dtype with most FLOPs: 1 of 6.3 GFLOP in bfloat16, none of 0.01 in float32."""
    router = flops(Phase.FORWARD, Work.MATMUL, 10_000_000, dtype="float32")
    work = utilization_of(on(rank(0, *STEPS, *COUNTED, router, *logged("redundant_flops", 1e9, 1e9, 1e9)))).work
    assert work.ranks[0].model == {"bfloat16": pytest.approx(5.3e9), "float32": 1e7}
    assert work.ranks[0].redundant == {"bfloat16": pytest.approx(1.05e9), "float32": 0}


def test_declared_flops_need_no_counts() -> None:
    """A compiled model has no counts. Each of two ranks did half, in bfloat16 unless declared."""
    ranks = [on(rank(number, *STEPS), probe="off: compiled") for number in (0, 1)]
    result = utilization_of(*ranks, model_flops_per_step=6.24e9)
    assert result.ratios.mfu == pytest.approx(0.1)
    assert (result.ratios.hfu, result.work.executed, result.work.redundant) == (None, None, None)
    assert utilization_of(*ranks, model_flops_per_step=3.9e8, flops_dtype="float32").ratios.mfu == pytest.approx(0.1)


def test_recorded_ranks_did_their_share_of_the_jobs_flops() -> None:
    """Two of four ranks, as one node's agent sees them: 12.48 GFLOP of the job, or 624 tokens that they log between
    them, are 3.12 GFLOP a rank.
    """
    rows = [logged("step_tokens", 1e6, 400, 400), logged("step_tokens", 1e6, 224, 224)]
    ranks = [on(rank(number, *STEPS, *rows[number]), probe="off: compiled") for number in (0, 1)]
    declared = utilization_of(*ranks, world_size=4, model_flops_per_step=12.48e9)
    by_rate = utilization_of(*ranks, world_size=4, flops_per_token=1e7)
    assert declared.ratios.mfu == by_rate.ratios.mfu == pytest.approx(0.1)
    assert by_rate.work.model == pytest.approx(6.24e9)
    assert by_rate.tokens_per_second == pytest.approx(1248 / 100e-6)


RATES = {"flops_per_token": 5e7, "tokens_per_step": 100, "flops_per_squared_length": 1e5}
"""5 GFLOP of weights per step."""


def test_rates_and_amounts_make_the_models_flops_in_both_conventions() -> None:
    """1 of 7.35 executed GFLOP was recomputed; weights take 5, attention over squared lengths of 6000 0.6, or half."""
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), **RATES, squared_lengths_per_step=6000)
    assert result.work.convention == FORMULA
    assert result.ratios.mfu == pytest.approx(5.3 / 31.2)
    assert result.ratios.mfu_paper == pytest.approx(5.6 / 31.2)
    assert result.work.redundant == pytest.approx(1.05e9)


CONFIGURED_RATES = {
    "formula_flops_per_token": 5e7,
    "formula_flops_per_squared_length": 1e5,
    "formula_flops_dtype": "float32",
    "tokens_per_step": 100,
    "squared_lengths_per_step": 6000,
}
"""Rates of a model's configuration: 5 GFLOP of weights per step, and 0.6 of attention, or half."""


def test_the_configuration_gives_the_flops_of_kernels_that_cannot_be_counted() -> None:
    """19.5 TFLOP/s in float32 do 1.95 GFLOP in 100 us."""
    result = utilization_of(on(rank(0, *STEPS), probe="off: compiled"), **CONFIGURED_RATES)
    assert (result.reason, result.work.convention) == (None, CONFIGURED)
    assert result.ratios.mfu == pytest.approx(5.3 / 1.95)
    assert result.ratios.mfu_paper == pytest.approx(5.6 / 1.95)
    assert result.ratios.hfu is None


@pytest.mark.parametrize("declared", [{}, {"model_flops_per_step": 6.24e9}])
def test_counts_and_declarations_win_over_the_configuration(declared: dict[str, float]) -> None:
    records = on(rank(0, *STEPS, *COUNTED))
    with_rates, without = utilization_of(records, **CONFIGURED_RATES, **declared), utilization_of(records, **declared)
    assert (with_rates.work.model, with_rates.work.convention) == (without.work.model, without.work.convention)


def test_without_tokens_the_configuration_gives_nothing() -> None:
    rates = {name: rate for name, rate in CONFIGURED_RATES.items() if name.startswith("formula")}
    assert utilization_of(on(rank(0, *STEPS), probe="off: compiled"), **rates).reason == "compiled (rank 0)"


def test_logged_amounts_win_and_shares_of_ranks_add_up() -> None:
    """Rank 0 logs 20 and 40 squared lengths in the two counted steps, rank 1 30 and 10. Experts took 7 and 3 rows."""
    rows = [logged("step_squared_lengths", 1e6, *squares) for squares in ((20, 40), (30, 10))]
    rows[0] += logged("expert_tokens[0.0]", 7, 7, 7)
    rows[1] += logged("expert_tokens[0.1]", 3, 3, 3)
    ranks = [on(rank(number, *STEPS, *rows[number]), probe="off: compiled") for number in (0, 1)]
    declared = {
        "flops_per_token": 1e6,
        "tokens_per_step": 1000,
        "flops_per_squared_length": 2e7,
        "squared_lengths_per_step": 9,
    }
    result = utilization_of(*ranks, **declared, flops_per_routed_token=1e8, routed_tokens_per_step=12)
    assert result.work.model == pytest.approx(1e9 + 50 * 1e7 + 10 * 1e8)


def test_executed_flops_are_scaled_to_the_mean_rows_of_experts() -> None:
    """18 in a step, taken or padding, and 14 in the second one, the only one that was counted: 4 rows more."""
    log = [*logged("expert_tokens[0.0]", 10, 12, 20), *logged("expert_padding", 8, 2, 2)]
    declared = {**RATES, "squared_lengths_per_step": 40, "flops_per_routed_token": 1e8}
    work = utilization_of(on(rank(0, *STEPS, *COUNTED, *log)), **declared).work
    assert work.executed == pytest.approx(7.35e9 + 4 * 1e8)
    unlogged = utilization_of(on(rank(0, *STEPS, *COUNTED, *log[2:3])), **declared).work
    assert unlogged.executed == pytest.approx(7.35e9)


def test_rates_without_amounts_name_the_missing_call() -> None:
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), **RATES)
    assert result.ratios.mfu is None
    assert result.reason == (
        "the squared lengths of its steps are unknown; "
        "call run.log(step_squared_lengths=...) or run.describe(squared_lengths_per_step=...)"
    )
    routed = utilization_of(
        on(rank(0, *STEPS, *COUNTED)), **RATES, squared_lengths_per_step=1, flops_per_routed_token=1.0
    )
    assert routed.reason == (
        "no step logged the tokens of its experts; call run.log(**{'expert_tokens[LAYER.EXPERT]': ...})"
    )


def test_declared_flops_are_split_as_counted_ones() -> None:
    """Rank 0 counted 6.3 GFLOP and rank 1, with a smaller stage, 2.1: of 4 declared, a quarter belongs to rank 1."""
    small = flops(Phase.FORWARD, Work.MATMUL, 2_100_000_000)
    work = utilization_of(on(rank(0, *STEPS, *COUNTED)), on(rank(1, *STEPS, small)), model_flops_per_step=4e9).work
    assert {number: sum(each.model.values()) for number, each in work.ranks.items()} == {0: 3e9, 1: 1e9}


@pytest.mark.parametrize(
    ("squares", "model"),
    [
        pytest.param((), 2 * 6.3e9, id="attention grows with the tokens"),
        pytest.param((7, 100, 500), 2 * 6e9 + 3 * 0.3e9, id="attention grows with squared lengths"),
    ],
)
def test_flops_scale_with_the_size_of_the_steps(squares: tuple[int, ...], model: float) -> None:
    """The second step, of 10 tokens, was counted; the third has 30; the first, of 1000, is warm-up."""
    rows = [*logged("step_tokens", 1000, 10, 30), *logged("step_squared_lengths", *squares)]
    result = utilization_of(on(rank(0, *STEPS, *COUNTED, *rows)))
    assert result.work.model == pytest.approx(model)
    assert result.work.recomputed == pytest.approx(2e9)
    assert result.tokens_per_second == pytest.approx(20 / 100e-6)


@pytest.mark.parametrize("peak", [63e12, {"bfloat16": 63e12, "float32": 1.0}])
def test_a_declared_peak_wins(peak: object) -> None:
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), peak_flops=peak, peak_source="measured")
    assert result.ratios.mfu == pytest.approx(1)
    assert result.peak is not None
    assert (dict(result.peak.flops), result.peak.source) == ({"bfloat16": 63e12}, "measured")


def covered(share: int) -> tuple[Row, ...]:
    return (*COUNTED[:-1], flops(Phase.FORWARD, Work.COVERED, share, dtype=""))


@pytest.mark.parametrize(
    ("rows", "probe", "settings", "reason"),
    [
        ((), None, {}, NEVER_COUNTED),
        ((), "on", {}, NO_PRODUCT),
        ((), "off: needs level 1, this run records level 0", {}, "needs level 1, this run records level 0 (rank 0)"),
        (COUNTED, f"off: compiled; {REMEDY}", {}, f"compiled; {REMEDY} (rank 0)"),
        (covered(979), "on", {}, "modules with 2% of the parameters' FLOPs use products that are not counted"),
        (COUNTED, "on", {"peak_flops": {"float32": 1e12}}, "the peak of NVIDIA A100-SXM4-80GB for bfloat16 is unknown"),
        (COUNTED, "on", {"peak_flops": -1}, "the peak of NVIDIA A100-SXM4-80GB for bfloat16 is unknown"),
    ],
)
def test_without_evidence_mfu_is_null_with_a_reason(
    rows: tuple[Row, ...], probe: str | None, settings: dict[str, Any], reason: str
) -> None:
    result = utilization_of(on(rank(0, *STEPS, *rows), probe=probe), **settings)
    assert (result.ratios.mfu, result.ratios.hfu, result.ratios.mfu_job, result.peak) == (None, None, None, None)
    assert result.reason is not None
    assert result.reason.startswith(reason)


def test_a_run_of_two_steps_is_too_short() -> None:
    assert utilization_of(on(rank(0, *STEPS[:2]))).reason == TOO_SHORT


def test_two_percent_uncovered_is_accepted() -> None:
    assert utilization_of(on(rank(0, *STEPS, *covered(980)))).reason is None


def test_counts_survive_a_lowered_level() -> None:
    assert utilization_of(on(rank(0, *STEPS, *COUNTED), probe="off: level 0, asked for")).reason is None


def test_a_processor_has_the_measured_peak_of_its_threads() -> None:
    """Half of 126 TFLOP/s."""
    device = {"name": "Some CPU", "count": 8, "threads": 2, "measured_flops": {"bfloat16": 126e12}}
    result = utilization_of(on(rank(0, *STEPS, *COUNTED), device))
    assert result.ratios.mfu == pytest.approx(0.5)
    assert result.peak is not None
    assert result.peak.source == (
        "measured with 2 threads of one process that runs alone (traincope doctor --measure-peak)"
    )
    declared = utilization_of(on(rank(0, *STEPS, *COUNTED), device), peak_flops=63e12)
    assert declared.ratios.mfu == pytest.approx(1)


def test_a_measured_peak_that_the_training_exceeds_gives_no_mfu() -> None:
    """63 TFLOP/s in forward and backward: another program slowed the measurement of 50 TFLOP/s."""
    device = {"name": "Some CPU", "count": 8, "threads": 2, "measured_flops": {"bfloat16": 50e12}}
    result = utilization_of(on(rank(0, *STEPS, *COUNTED), device))
    assert result.reason == IMPOSSIBLE
    assert result.ratios.mfu is result.ratios.hfu is result.ratios.waterfall is None


@pytest.mark.parametrize("rates", [None, {"float32": 1e12}, {"bfloat16": 0.0}, "fast"])
def test_a_processor_that_was_not_measured_asks_for_the_command(rates: object) -> None:
    device = {"name": "Some CPU", "count": 8, "threads": 2, "measured_flops": rates}
    assert utilization_of(on(rank(0, *STEPS, *COUNTED), device)).reason == (
        "the peak of Some CPU for bfloat16 is unknown; run traincope doctor --measure-peak --threads 2 on its host, or "
        "call run.describe(peak_flops=...)"
    )


UNFUSED = (
    flops(Phase.FORWARD, Work.MATMUL, 2_000_000_000),
    flops(Phase.BACKWARD, Work.MATMUL, 4_000_000_000),
    flops(Phase.FORWARD, Work.CAUSAL_PRODUCTS, 200_000_000),
    flops(Phase.BACKWARD, Work.MASKED_ATTENTION, 400_000_000),
    flops(Phase.BACKWARD, Work.HIDDEN_ATTENTION, 100_000_000),
)


def test_causal_attention_that_multiplies_the_masked_half_is_halved_and_executed_whole() -> None:
    """0.3 of 0.6 GFLOP are masked, and 0.1 belong to other documents: 0.4 are redundant."""
    result = utilization_of(on(rank(0, *STEPS, *UNFUSED)))
    assert (result.work.model, result.work.executed) == (6.3e9, 6.7e9)
    assert result.work.redundant == pytest.approx(0.4e9)
    assert result.ratios.mfu_paper == pytest.approx(6.6 / 31.2)


def test_flops_by_modules_and_by_graphs_leave_the_executed_ones_unknown() -> None:
    """0.63 of 6.3 GFLOP with attention whole are a module's."""
    by_module = flops(Phase.FORWARD, Work.BY_MODULE, 630_000_000)
    linear = flops(Phase.FORWARD, Work.MATMUL, 5_670_000_000)
    state = "on, compiled code by the graphs that torch.compile captured"
    result = utilization_of(on(rank(0, *STEPS, linear, by_module), probe=state))
    assert result.ratios.mfu == pytest.approx(6.3 / 31.2)
    assert (result.work.executed, result.work.recomputed, result.ratios.hfu) == (None, None, None)
    assert result.work.convention == (
        "as counted, compiled code by the graphs that torch.compile captured, "
        "10 % of them by the weights and inputs of modules whose kernels cannot be counted, causal attention halved"
    )


def test_the_analysis_knows_the_state_of_a_probe_that_counted_graphs() -> None:
    assert f"on, {BY_GRAPHS}" == RECORDED


def test_an_unknown_device_asks_for_its_peak() -> None:
    result = utilization_of(on(rank(0, *STEPS, *COUNTED), {"name": "Some CPU"}))
    assert result.reason == "the peak of Some CPU for bfloat16 is unknown; call run.describe(peak_flops=...)"
    assert result.work.model == 6.3e9


def test_ranks_without_records_leave_the_job_unknown() -> None:
    result = utilization_of(on(rank(0, *STEPS, *COUNTED)), world_size=2)
    assert result.reason == "rank 1 left no readable records, so its FLOPs are missing"


def test_without_a_counted_step_there_is_no_mfu() -> None:
    result = utilization_of(on(rank(0, flops(Phase.FORWARD, Work.MATMUL, 1))))
    assert result.reason == "no complete step was recorded"
    assert np.isfinite(result.work.model or 0)


def two_ranks() -> Timeline:
    """Steps of 100 us; rank 0 does 6.24 GFLOP in 40 us of forward and rank 1 the same in 60 us."""
    flop = flops(Phase.FORWARD, Work.MATMUL, 6_240_000_000)
    sure = COUNTED[-2:]
    ranks = [
        on(rank(at, *STEPS, flop, *sure, *(phase(Phase.FORWARD, b * US, (b + long) * US) for b in (100, 200))))
        for at, long in ((0, 40), (1, 60))
    ]
    return build_timeline(run(*ranks))


def test_a_rank_has_its_own_waterfall() -> None:
    """At 312 TFLOP/s its FLOPs are 20 us: 20 % of a step each, and the rest of forward differs."""
    line = two_ranks()
    analysis = analyze(line)
    shares = {
        at: waterfall_of(line, analysis.ledger, analysis.utilization, ranks=frozenset({at}))["kernel_inefficiency"]
        for at in (0, 1)
    }
    assert shares == pytest.approx({0: 0.2, 1: 0.4})
    whole = waterfall_of(line, analysis.ledger, analysis.utilization, ranks=frozenset({0, 1}))
    assert whole == analysis.utilization.ratios.waterfall
    assert whole["ideal"] == pytest.approx(0.2)


def test_without_mfu_the_waterfall_is_the_ledgers_shares() -> None:
    line = build_timeline(run(rank(0, *STEPS, phase(Phase.FORWARD, 100 * US, 150 * US))))
    analysis = analyze(line)
    shares = waterfall_of(line, analysis.ledger, analysis.utilization, ranks=frozenset({0}))
    assert shares["forward"] == 0.25
    assert "ideal" not in shares
