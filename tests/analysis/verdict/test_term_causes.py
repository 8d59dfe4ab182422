"""Causes within terms: their times are known by hand, they do not overlap, and never exceed their term."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import traincope
from tests.analysis.verdict.test_loss_breakdown import attempt, bare, job, mixture, operation
from tests.report.example import MS, analysis
from traincope.analysis import Analysis, Contention, MessageImbalance, TermCauses, Unfused, term_causes
from traincope.analysis.attribution.stalls import AmbiguousWait, StallTotal
from traincope.analysis.context import Context
from traincope.analysis.efficiency.peaks import Peak
from traincope.analysis.efficiency.utilization import Ratios
from traincope.analysis.faults.anomalies.data_order import Continuation, DataOrder, Order
from traincope.analysis.stragglers.late_ranks import LateRanks, late_ranks

SAMPLES = sorted(
    path.parent
    for path in (Path(__file__).parents[3] / "sample_runs").rglob("expected.json")
    if (path.parent / "attempt-000").exists()
)
Slices = list[tuple[str, str, int, str]]


def causes_of(result: Analysis, *terms: str) -> Slices:
    """Kind, subject, ns and basis of each cause of these terms."""
    found = [each for each in term_causes(result) if each.terms == terms]
    return [(cause.kind.value, cause.subject, cause.ns, cause.basis.value) for each in found for cause in each.causes]


def hold(sliced: tuple[TermCauses, ...]) -> None:
    for each in sliced:
        assert sum(cause.ns for cause in each.causes) <= each.ns
        assert each.rest_ns >= 0
        assert len({(cause.kind, cause.subject) for cause in each.causes}) == len(each.causes)


def with_waterfall(result: Analysis, **shares: float) -> Analysis:
    return replace(result, utilization=replace(result.utilization, ratios=Ratios(waterfall=shares)))


def test_waits_belong_to_the_rank_that_joined_last() -> None:
    """Rank 0 waits 15 ms on fsdp, all for rank 1."""
    stalls = (
        (StallTotal("fsdp", "all_gather", 1, 20 * MS, 15 * MS, 0),),
        (StallTotal("fsdp", "all_gather", 0, MS, 0, 0),),
    )
    result = replace(analysis(), late_ranks=late_ranks(stalls))
    assert causes_of(result, "exposed_wait[fsdp]") == [("late_rank", "rank 1", 15 * MS, "measured")]


def test_waits_that_the_bubble_owns_are_left_out_in_proportion() -> None:
    """Of 60 ms of waits, 40 for rank 1 and 20 for an unknown rank, the ledger's term has 15."""
    waits = LateRanks(waits_ns={"fsdp": {1: 40 * MS, None: 20 * MS}})
    result = replace(analysis(), late_ranks=waits)
    assert causes_of(result, "exposed_wait[fsdp]") == [("late_rank", "rank 1", 10 * MS, "proportion")]


def test_the_bubble_is_divided_by_stage_with_its_signs() -> None:
    result = analysis()
    assert causes_of(result, "bubble.schedule") == [
        ("bubble.schedule", "stage 0", 60 * MS, "measured"),
        ("bubble.schedule", "stage 1", 60 * MS, "measured"),
    ]
    assert [ns for _, _, ns, _ in causes_of(result, "bubble.jitter")] == [-3 * MS, -3 * MS]


def test_longer_transfers_count_as_far_as_they_are_exposed() -> None:
    """Of 36 ms of transfers 18 are exposed; 8 ms are contention and 4 ms unequal messages."""
    row = replace(
        operation(
            message_imbalance=MessageImbalance(ranks=(1,), ratio=1.5, cost_ns=4 * MS),
            contention=(Contention(axis="fsdp", count=8, compared=6, extra_ns=8 * MS),),
        ),
        axis="pp",
        transfer_ns=36 * MS,
        exposed_ns=20 * MS,
        wait_ns=2 * MS,
    )
    assert causes_of(replace(bare(), comm=(row,)), "exposed_transfer[pp]") == [
        ("contention", "all_to_all during fsdp", 4 * MS, "proportion"),
        ("message_imbalance", "all_to_all", 2 * MS, "proportion"),
    ]


def test_transfers_that_may_be_waits_come_first_and_the_rest_is_cut() -> None:
    """pp has 18 ms: 16 may be wait, so of 4 ms of contention 2 have room."""
    result = bare()
    first, second = result.ledger.ranks
    may_be_wait = np.where(first.numbers == first.numbers[first.counted][0], 16 * MS, 0)
    first = replace(first, ambiguous_waits={("pp", AmbiguousWait.CLOCKS): may_be_wait})
    row = replace(
        operation(contention=(Contention(axis="fsdp", count=8, compared=6, extra_ns=4 * MS),)), axis="pp", wait_ns=0
    )
    sliced = replace(result, ledger=replace(result.ledger, ranks=(first, second)), comm=(row,))
    assert causes_of(sliced, "exposed_transfer[pp]") == [
        ("ambiguous_wait", "clocks", 16 * MS, "measured"),
        ("contention", "all_to_all during fsdp", 2 * MS, "proportion"),
    ]


def test_compute_is_sliced_once_above_the_model() -> None:
    """405 of 600 ms compute: 300 the model at peak, 30 redundant, 75 below peak."""
    rated = with_waterfall(bare(), ideal=0.5, redundant_compute=0.05, kernel_inefficiency=0.125)
    assert causes_of(rated, "forward", "backward") == [
        ("kernel_inefficiency", "", 75 * MS, "rest"),
        ("redundant_compute", "", 30 * MS, "at_peak"),
    ]


def test_padding_is_a_part_of_redundant_compute() -> None:
    """3 steps of 20 rows of 1e11 FLOPs at 1e12 a second are 6 s: more than the compute, so it takes all of it.

    Of 1e8 FLOPs they are 6 ms of the 30 ms of redundant compute.
    """
    peak = Peak(device="test", flops={"bfloat16": 1e12}, source="by hand")
    shares = {"ideal": 0.5, "redundant_compute": 0.05, "kernel_inefficiency": 0.125}
    padded = with_waterfall(mixture(peak=peak, flops_per_routed_token=1e8), **shares)
    assert causes_of(padded, "forward", "backward") == [
        ("kernel_inefficiency", "", 75 * MS, "rest"),
        ("redundant_compute", "", 24 * MS, "at_peak"),
        ("expert_padding", "", 6 * MS, "at_peak"),
    ]
    huge = with_waterfall(mixture(peak=peak, flops_per_routed_token=1e11), **shares)
    assert causes_of(huge, "forward", "backward") == [("expert_padding", "", 405 * MS, "at_peak")]


def unfused(**saved: int) -> Unfused:
    return Unfused(
        count=1, num_kernels=2, total_ns=100 * MS, in_steps_ns=100 * MS, steps_ns=600 * MS, chains=(),
        rated_ns=100 * MS, saving=None, saved_in_steps_ns=sum(saved.values()), saved_by_phase=saved,
    )  # fmt: skip


def test_kernels_that_could_be_fused_are_a_part_of_the_inefficiency_and_only_in_imported_runs() -> None:
    rated = with_waterfall(bare(), ideal=0.5, redundant_compute=0.05, kernel_inefficiency=0.125)
    traced = replace(rated, unfused=unfused(backward=25 * MS, optimizer=5 * MS))
    assert all(kind != "unfused_kernels" for kind, *_ in causes_of(traced, "forward", "backward"))
    run = replace(traced.timeline.run, info=replace(traced.timeline.run.info, imported=True))
    imported = replace(traced, context=Context(replace(traced.timeline, run=run)))
    assert causes_of(imported, "forward", "backward") == [
        ("kernel_inefficiency", "", 50 * MS, "rest"),
        ("redundant_compute", "", 30 * MS, "at_peak"),
        ("unfused_kernels", "backward", 25 * MS, "at_most"),
    ]
    assert causes_of(imported, "optimizer") == [("unfused_kernels", "optimizer", 5 * MS, "at_most")]


def test_batches_that_were_fed_again_are_a_part_of_the_productive_time() -> None:
    """5 steps kept 50 s, so steps 3 and 4 on known batches are 20 s. Both ranks have the same answer."""
    done = replace(job(attempt(0, endings={0: None, 1: None}), attempt(1, endings={0: "clean", 1: "clean"})))
    again = Continuation(attempt=1, step=4, ranks=(0,), order=Order.FED_AGAIN, num_batches=2, first_step=3, last_step=4)
    order = DataOrder(continuations=(again, replace(again, ranks=(1,))))
    result = replace(bare(), goodput=done, data_order=order)
    assert causes_of(result, "productive") == [("data_fed_again", "attempt 1, steps 3, 4", 20_000 * MS, "proportion")]
    right = replace(order, continuations=(replace(again, order=Order.RIGHT, first_step=None, last_step=None),))
    assert causes_of(replace(result, data_order=right), "productive") == []


@given(
    ideal=st.floats(0, 1),
    redundant=st.floats(-0.1, 1),
    inefficiency=st.floats(-1, 1),
    rate=st.floats(1, 1e12),
    extra=st.integers(-(10**9), 10**9),
    waits=st.dictionaries(st.integers(0, 40), st.integers(0, 10**10), max_size=40),
)
def test_no_numbers_make_the_causes_exceed_their_term(
    ideal: float, redundant: float, inefficiency: float, rate: float, extra: int, waits: dict[int | None, int]
) -> None:
    peak = Peak(device="test", flops={"bfloat16": 1e12}, source="by hand")
    result = with_waterfall(
        mixture(peak=peak, flops_per_routed_token=rate),
        ideal=ideal,
        redundant_compute=redundant,
        kernel_inefficiency=inefficiency,
    )
    row = replace(operation(contention=(Contention(axis="tp", count=1, compared=1, extra_ns=extra),)), axis="pp")
    result = replace(result, comm=(row,), late_ranks=LateRanks(waits_ns={"fsdp": waits} if any(waits.values()) else {}))
    hold(term_causes(result))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_the_causes_of_recorded_runs_never_exceed_their_terms(sample: Path) -> None:
    """And the bubble's are the whole terms."""
    result = traincope.analyze(traincope.open_run(sample))
    sliced = term_causes(result)
    hold(sliced)
    assert any(each.terms[0].startswith("exposed_wait") for each in sliced)
    assert all(each.rest_ns == 0 for each in sliced if each.terms[0].startswith("bubble."))


def test_a_run_without_steps_has_no_causes() -> None:
    from tests.report.example import without_steps

    assert term_causes(without_steps()) == ()
