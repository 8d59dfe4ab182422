"""Predictions of other settings: each equals the changed pipeline, collective or training, computed independently."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluation.truth.pipelines.cases import Case, step_units, units
from evaluation.truth.trainings.on_paper import recorded, wired
from evaluation.truth.trainings.playing import truth, wall_ns
from evaluation.truth.trainings.workloads import MS, WORKLOADS, Workload
from tests.analysis.pipeline.pipelines import Pipeline
from traincope.analysis import Bubble, SettingsPrediction, analyze, parse_settings, predict_settings
from traincope.analysis.communication.axis_operations import AxisOperation, MessageSize
from traincope.analysis.replaying.pipeline_change import (
    Measured,
    balanced_ns,
    changed_ns,
    measured_pipeline,
    replayed_ns,
)
from traincope.analysis.what_if.link_law import LinkLaw, Messages, link_laws, sent_messages
from traincope.analysis.what_if.new_settings import check_pipeline, check_tensor
from traincope.analysis.what_if.settings import Settings
from traincope.errors import UsageError
from traincope.plan.pipeline.orders import Shape, orders
from traincope.plan.pipeline.schedule import timetable
from traincope.timeline import open_run

SAMPLES = Path(__file__).parents[3] / "sample_runs"
NAMED = {workload.name: workload for workload in WORKLOADS}
UNITS = {"F": 60, "I": 60, "W": 60, "B": 120}


def pipeline(schedule: str, shape: Shape, *, scale: float = 1.0, slow: float = 1.0, message_ns: int = 0) -> Pipeline:
    """F, I and W of 60 ns, times `scale`; those of the last rank times `slow`."""
    wanted = orders(schedule, shape)
    durations = {
        (action.kind, action.stage): round(UNITS[action.kind] * scale * (slow if rank == shape.ranks - 1 else 1.0))
        for rank, order in wanted.items()
        for action in order
    }
    return Pipeline(orders=wanted, durations=durations, transfer_ns=message_ns)


def measured(schedule: str, shape: Shape, **more: float) -> Measured:
    played = pipeline(schedule, shape, **more)  # type: ignore[arg-type]
    return Measured(
        schedule=schedule,
        shape=shape,
        orders=played.orders,
        durations_ns=played.durations,
        message_ns=played.transfer_ns,
        is_synchronised=True,
        span_ns=played.end(),
    )


SMALL = Shape(ranks=2, microbatches=4)
CHANGES = [
    ("1f1b", SMALL, "1f1b", Shape(ranks=2, microbatches=8), 0.5),
    ("1f1b", SMALL, "interleaved", Shape(ranks=2, microbatches=4, chunks=2), 0.5),
    ("1f1b", SMALL, "zb-1p", SMALL, 1.0),
    ("zb-1p", SMALL, "1f1b", SMALL, 1.0),
    ("1f1b", SMALL, "zb-v", Shape(ranks=2, microbatches=4, chunks=2), 0.5),
    ("gpipe", SMALL, "1f1b", Shape(ranks=4, microbatches=8), 0.25),
]


@pytest.mark.parametrize("message_ns", [0, 7])
@pytest.mark.parametrize(("schedule", "shape", "other", "other_shape", "scale"), CHANGES)
def test_a_changed_pipeline_takes_the_predicted_time(
    schedule: str, shape: Shape, other: str, other_shape: Shape, scale: float, message_ns: int
) -> None:
    """The first prediction takes messages as long as before; `Pipeline` plays the new order in its own way."""
    before = measured(schedule, shape, message_ns=message_ns)
    assert replayed_ns(before) == before.span_ns
    times = changed_ns(before, schedule=other, shape=other_shape)
    assert times[0] == pipeline(other, other_shape, scale=scale, message_ns=message_ns).end()
    assert min(times) <= times[0] <= max(times)


def test_a_slow_rank_stays_slow_and_the_interval_has_the_even_stages() -> None:
    before = measured("1f1b", SMALL, slow=1.5)
    more = Shape(ranks=2, microbatches=8)
    first, *others = changed_ns(before, schedule="1f1b", shape=more)
    assert first == pipeline("1f1b", more, scale=0.5, slow=1.5).end()
    assert min(others) == pipeline("1f1b", more, scale=0.5 * 1.25).end()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-1p"])
@pytest.mark.parametrize("ranks", [(0, 1), (0, 2), (1, 3)])
def test_balanced_stages_have_the_mean_work_whatever_the_numbers_of_their_ranks(
    schedule: str, ranks: tuple[int, int]
) -> None:
    """The second of two replicas, or one next to another axis, has numbers beyond its size."""
    slow = measured(schedule, SMALL, slow=1.5)
    numbered = replace(slow, orders={rank: slow.orders[place] for place, rank in enumerate(ranks)})
    assert balanced_ns(numbered) == pipeline(schedule, SMALL, scale=1.25).end()
    more = Shape(ranks=2, microbatches=8)
    assert changed_ns(numbered, schedule=schedule, shape=more) == changed_ns(slow, schedule=schedule, shape=more)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-1p", "zb-v"])
@pytest.mark.parametrize("slow_stage", [None, 0, 1])
def test_ranks_that_do_not_wait_for_each_other_begin_their_next_step_early(
    schedule: str, slow_stage: int | None
) -> None:
    """`step_units` plays steps in a row in its own way; a normal F, I or W is 1 unit."""
    shape = Shape(ranks=2, microbatches=4, chunks=2 if schedule == "zb-v" else 1)
    case = Case(schedule=schedule, shape=shape, slow_stage=slow_stage)
    durations = {key: round(100 * length) for key, length in units(case).items()}
    alone = replace(measured(schedule, shape), durations_ns=durations, is_synchronised=False)
    assert replayed_ns(alone) == pytest.approx(100 * step_units(case))


def test_a_size_that_the_schedule_cannot_have_is_refused() -> None:
    with pytest.raises(UsageError, match="interleaved needs a multiple of 2 microbatches"):
        changed_ns(measured("1f1b", SMALL), schedule="interleaved", shape=Shape(ranks=2, microbatches=3, chunks=2))


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_step_of_several_rounds_is_refused(rounds: int) -> None:
    planned = timetable(orders("1f1b", Shape(ranks=2, microbatches=4 * rounds)))
    bubble = Bubble(schedule="1f1b", num_stages=2, num_microbatches=4, stages=(), theory_ratio=None, replay_ratio=None)
    if rounds == 1:
        found = measured_pipeline(bubble, planned, message_ns=0, is_synchronised=True)
        assert replayed_ns(found) == planned.span == found.span_ns
        return
    with pytest.raises(UsageError, match="takes 8 microbatches in rounds of 4"):
        measured_pipeline(bubble, planned, message_ns=0, is_synchronised=True)


# -- collectives ----------------------------------------------------------------------------------


def test_a_law_is_found_again_on_two_sizes() -> None:
    """4 us per step and 2 GB/s in groups of 4: 6 steps and 1.5 of the bytes."""
    law = LinkLaw(latency_seconds=4e-6, seconds_per_byte=0.5e-9, num_sizes=2)
    sent = [
        Messages(
            operation="all_reduce", count=3, num_bytes=size, seconds=law.seconds("all_reduce", num_bytes=size, ranks=4)
        )
        for size in (1 << 10, 1 << 20)
    ]
    assert sent[0].seconds == pytest.approx(24e-6 + 1.5 * 1024 * 0.5e-9)
    (fitted,) = link_laws(sent, ranks=4)
    assert (fitted.latency_seconds, fitted.seconds_per_byte) == pytest.approx((4e-6, 0.5e-9))
    assert fitted.num_sizes == 2


def test_one_size_leaves_latency_or_bandwidth() -> None:
    sent = [Messages(operation="all_reduce", count=1, num_bytes=1000, seconds=10.0)]
    latency, rate = link_laws(sent, ranks=2)
    assert latency.seconds("all_reduce", num_bytes=1000, ranks=4) == pytest.approx(30.0)
    assert rate.seconds("all_reduce", num_bytes=1000, ranks=4) == pytest.approx(15.0)


def test_a_group_of_one_rank_or_without_messages_has_no_law() -> None:
    assert link_laws([], ranks=4) == ()
    assert link_laws([Messages(operation="all_reduce", count=1, num_bytes=8, seconds=1.0)], ranks=1) == ()


def test_messages_are_those_of_the_axis() -> None:
    sizes = (
        MessageSize(max_bytes=1 << 7, count=4, transfer_ns=400, bus_bandwidth=None),
        MessageSize(max_bytes=1 << 13, count=2, transfer_ns=600, bus_bandwidth=None),
    )
    row = AxisOperation(
        axis="tp",
        operation="all_reduce",
        count=6,
        num_bytes=4 * 128 + 2 * 8192,
        transfer_ns=1000,
        wait_ns=0,
        exposed_ns=1000,
        bus_bandwidth=None,
        sizes=sizes,
    )
    found = sent_messages([row, replace(row, axis="dp")], "tp")
    assert [(each.num_bytes, each.seconds) for each in found] == [(128, 100e-9), (8192, 300e-9)]


# -- replays --------------------------------------------------------------------------------------


def predicted(workload: Workload, expression: str) -> SettingsPrediction:
    settings = parse_settings(expression)
    assert settings is not None
    prediction = predict_settings(analyze(recorded(wired(workload), steps=4)), settings)
    assert prediction.reason is None
    assert prediction.least_ns <= prediction.predicted_ns <= prediction.most_ns
    return prediction


def true_ns(workload: Workload) -> int:
    return max(map(wall_ns, truth(wired(workload))))


def test_more_tp_divides_compute_and_takes_the_links_of_one_size_as_latency_or_bandwidth() -> None:
    """Two layers of (100 + 150) ms and four all-reduces of 20 ms: from 2 to 4 ranks 30 ms each, or 60 ms."""
    workload = NAMED["tp: slow link"]
    prediction = predicted(workload, "tp=4")
    assert prediction.step_ns == true_ns(workload) == (500 + 4 * 20) * MS
    assert prediction.predicted_ns == pytest.approx((250 + 4 * 45) * MS)
    assert (prediction.least_ns, prediction.most_ns) == pytest.approx(((250 + 4 * 30) * MS, (250 + 4 * 60) * MS))


@pytest.mark.parametrize("loading_ms", [80, 700])
def test_prefetching_hides_loading_behind_the_rest_of_a_step(loading_ms: int) -> None:
    """A step takes 501 ms without loading; a batch that takes longer sets the pace."""
    workload = replace(NAMED["ddp: slow loaders"], data_ns=(loading_ms * MS,))
    prediction = predicted(workload, "prefetch=1")
    assert prediction.step_ns == true_ns(workload) == (501 + loading_ms) * MS
    assert prediction.predicted_ns == pytest.approx(max(501, loading_ms) * MS)


def test_without_its_straggler_a_training_is_as_if_it_never_had_one() -> None:
    workload = NAMED["tp: slow link, rank 0 slow"]
    prediction = predicted(workload, "stragglers=none")
    assert prediction.predicted_ns == pytest.approx(true_ns(replace(workload, forward_ns=(100 * MS,))))
    assert "rank 0 saves most" in prediction.stands_on


def test_a_prediction_of_tp_states_what_it_keeps_and_assumes() -> None:
    facts = predicted(NAMED["tp: slow link"], "tp=4").stands_on
    assert "messages of other axes stay as they are, although each rank then holds fewer weights" in facts
    assert "heads and widths are assumed to divide over tp=4: the run does not declare them" in facts


def test_a_gain_within_the_scatter_of_the_steps_is_no_straggler() -> None:
    """The sample's 6 steps differ by more than the 76 ms that its slow rank costs."""
    analysis = analyze(open_run(SAMPLES / "demo-3d"))
    with pytest.raises(UsageError, match=r"would take \S+ ms less, which is within the error .* shows no straggler"):
        predict_settings(analysis, Settings(stragglers="none"))


def test_ranks_with_other_numbers_of_counted_steps_are_compared_per_step() -> None:
    """Rank 1 counts one step fewer than rank 0, and does equal work in each."""
    analysis = analyze(recorded(wired(NAMED["ddp: slow link"]), steps=6))
    first, *others = analysis.ledger.ranks
    counted = first.counted.copy()
    counted[np.flatnonzero(counted)[-1]] = False
    ledger = replace(analysis.ledger, ranks=(replace(first, counted=counted), *others))
    with pytest.raises(UsageError, match="has no straggler to remove"):
        predict_settings(replace(analysis, ledger=ledger), Settings(stragglers="none"))


# -- declared sizes ---------------------------------------------------------------------------------

SIZES = {
    "model": {"layers": 6, "heads": 8, "kv_heads": 4, "ffn": 704},
    "train": {"batch": 32, "accumulation": 1},
    "parallel": {"dp_replicate": 1, "fsdp": 2, "dp": 1},
}


@pytest.mark.parametrize(
    ("ranks", "microbatches", "sentence"),
    [
        (16, 64, "the 6 layers of this run do not fill 16 stages"),
        (2, 64, "the 16 sequences of a replica do not divide into 64 microbatches; choose a divisor of 16"),
        (2, 3, "do not divide into 3 microbatches"),
        (8, 16, None),
    ],
)
def test_a_pipeline_that_the_run_cannot_have_is_refused(ranks: int, microbatches: int, sentence: str | None) -> None:
    """A first and a last stage without a layer are possible: they have the embedding and the output."""
    shape = Shape(ranks=ranks, microbatches=microbatches)
    if sentence is None:
        assert list(check_pipeline(SIZES, schedule="1f1b", shape=shape)) == []
        return
    with pytest.raises(UsageError, match=sentence):
        list(check_pipeline(SIZES, schedule="1f1b", shape=shape))


def test_a_pipeline_of_undeclared_sizes_is_assumed_to_be_possible() -> None:
    assert list(check_pipeline({"model": "mine"}, schedule="1f1b", shape=Shape(ranks=3, microbatches=5))) == [
        "the layers are assumed to fill 3 stages: the run does not declare their number",
        "the batch is assumed to divide into 5 microbatches: the run does not declare it",
    ]


@pytest.mark.parametrize(("tp", "name"), [(3, "heads = 8"), (8, "kv_heads = 4")])
def test_a_tp_that_does_not_divide_the_model_is_refused(tp: int, name: str) -> None:
    assert list(check_tensor(SIZES, tp=4)) == []
    with pytest.raises(UsageError, match=f"model.{name} of this run does not divide over tp={tp}"):
        list(check_tensor(SIZES, tp=tp))


# -- expressions ----------------------------------------------------------------------------------


def test_an_expression_of_factors_has_no_settings() -> None:
    assert parse_settings("tp.transfer=0.5,rank3.compute=0.9") is None


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("pp=4,tp.transfer=0.5", "'tp.transfer=0.5' cannot be combined with settings"),
        ("pp=4,tp=2", "only changes of the pipeline can be combined with each other, .*; ask for tp alone"),
        ("pp=0", "pp is a whole number from 1"),
        ("pp=2,pp=4", "pp stands twice"),
        ("schedule=1f2b", "choose one of"),
        ("fsdp=8", "fsdp is not a setting here; use dp"),
        ("dp=8,tp=2", "only changes of the pipeline can be combined with each other, and dp, cp, ep, zero"),
        ("dp=8,pp=2", "ask for dp alone"),
        ("zero=4", "choose one of 0, 1, 2, 3"),
        ("stragglers=1", "choose one of none"),
        ("quantize_weights=yes", "choose one of true, false"),
        ("offload_optimizer=disk", "choose one of device, cpu, nvme"),
    ],
)
def test_an_impossible_expression_is_refused_in_one_sentence(expression: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_settings(expression)


def test_settings_are_printed_as_they_are_asked() -> None:
    asked = "zero=3, node_ranks=8, quantize_weights=true, offload_parameters=nvme"
    settings = parse_settings(asked)
    assert settings is not None
    assert settings.text == asked


@pytest.mark.parametrize(
    ("name", "expression", "sentence"),
    [
        ("ddp: slow link", "microbatches=8", "has no pipeline"),
        ("ddp: slow link", "tp=4", "has no collective on axis tp"),
        ("ddp: slow link", "prefetch=2", "waits for no data"),
        ("ddp: slow link", "dp=4", "which only a run of `traincope train` declares"),
        ("ddp: slow link", "stragglers=none", "has no straggler to remove"),
    ],
)
def test_a_run_that_does_not_show_the_rate_says_so(name: str, expression: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        predicted(NAMED[name], expression)
