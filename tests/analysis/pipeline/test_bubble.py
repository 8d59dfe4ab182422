"""Pipeline idle time split into schedule, imbalance, transfer and jitter: each case has one cause."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.analysis.pipeline.orders import Orders, gpipe, one_forward_one_backward
from tests.analysis.pipeline.pipelines import Pipeline
from tests.timeline.build import Row, action, collective, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, Bubble, analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.events import OPEN, Kind, Phase
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import Shape, orders
from traincope.plan.pipeline.schedule import Key
from traincope.store import RankRecords

TERMS = ("bubble.schedule", "bubble.imbalance", "exposed_transfer[pp]", "bubble.jitter")


def lengths(stages: int, *, forward: int, backward: int, slow: int | None = None) -> dict[Key, int]:
    """Build a pipeline of equal stages; the stage `slow` is 25 % slower."""
    plain = {(kind, s): ns for s in range(stages) for kind, ns in (("F", forward), ("B", backward))}
    return {(kind, s): ns * 5 // 4 if s == slow else ns for (kind, s), ns in plain.items()}


def analyzed(ranks: list[RankRecords]) -> Analysis:
    analysis = analyze(timeline(*ranks))
    for ledger in analysis.ledger.ranks:
        summed = sum(ns for ns in ledger.terms.values() if ns is not None)
        assert (ledger.wall_ns == summed).all()
    assert "exposed_wait[pp]" not in analysis.ledger.order
    return analysis


def parts(analysis: Analysis) -> list[tuple[int | None, ...]]:
    """Return (schedule, imbalance, transfer, jitter) of each rank."""
    return [tuple(ledger.total(term) for term in TERMS) for ledger in analysis.ledger.ranks]


def bubble_of(analysis: Analysis) -> Bubble:
    assert analysis.bubble is not None
    return analysis.bubble


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 16)])
def test_equal_stages_idle_only_for_the_schedule_as_in_theory(
    order: Callable[[int, int], Orders], stages: int, microbatches: int
) -> None:
    even = Pipeline(orders=order(stages, microbatches), durations=lengths(stages, forward=10, backward=20))
    analysis = analyzed(even.ranks())
    assert parts(analysis) == [((stages - 1) * 30, 0, 0, 0)] * stages
    theory = float(Fraction(stages - 1, microbatches + stages - 1))
    bubble = bubble_of(analysis)
    assert (bubble.fraction_ratio, bubble.theory_ratio, bubble.replay_ratio) == pytest.approx((theory, theory, theory))
    assert (bubble.num_stages, bubble.num_microbatches) == (stages, microbatches)
    assert bubble.schedule == ("gpipe" if order is gpipe else "1f1b")


def test_a_slow_stage_is_imbalance_and_the_schedule_uses_means() -> None:
    """F = 16 and B = 32, stage 1 has 20 and 40: means 17 and 34, so schedule = 3 x 51."""
    uneven = Pipeline(orders=gpipe(4, 8), durations=lengths(4, forward=16, backward=32, slow=1))
    analysis = analyzed(uneven.ranks())
    pool = [uneven.end() - 8 * 48, uneven.end() - 8 * 60, uneven.end() - 8 * 48, uneven.end() - 8 * 48]
    assert parts(analysis) == [(153, ns - 153, 0, 0) for ns in pool]
    imbalances = [stage.imbalance_ns for stage in bubble_of(analysis).stages]
    assert min(imbalances) == imbalances[1] < 0 < imbalances[0]


def test_transfers_that_the_replay_waits_for_are_exposed_and_nothing_is_jitter() -> None:
    sent = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20), transfer_ns=7)
    assert parts(analyzed(sent.ranks())) == [(30, 0, 14, 0)] * 2


def test_a_hidden_message_is_not_slow() -> None:
    """Forwards of stage 1 take twice as long, so all messages except the first arrive before their waits."""
    durations = {("F", 0): 10, ("F", 1): 20, ("B", 0): 20, ("B", 1): 20}
    ahead = Pipeline(orders=gpipe(2, 4), durations=durations, transfer_ns=7, posts_ahead=True)
    assert [transfer for _, _, transfer, _ in parts(analyzed(ahead.ranks()))] == [14, 14]


EVERY_KIND = {"F": 10, "I": 10, "W": 10, "B": 20}
SHAPES = [
    ("naive", Shape(ranks=2, microbatches=4)),
    ("interleaved", Shape(ranks=2, microbatches=4, chunks=2)),
    ("interleaved", Shape(ranks=4, microbatches=4, chunks=3)),
    ("zb-1p", Shape(ranks=4, microbatches=8)),
    ("zb-v", Shape(ranks=2, microbatches=4, chunks=2)),
    ("zb-v", Shape(ranks=4, microbatches=8, chunks=2)),
]


def pipeline_of(schedule: str, shape: Shape, *, slow: int | None = None) -> Pipeline:
    durations = {
        (kind, stage): ns * 5 // 4 if stage == slow else ns
        for kind, ns in (EVERY_KIND | {"F": 8, "I": 8, "W": 8, "B": 16} if slow is not None else EVERY_KIND).items()
        for stage in range(shape.stages)
    }
    return Pipeline(orders=orders(schedule, shape), durations=durations)


@pytest.mark.parametrize(("schedule", "shape"), SHAPES)
def test_every_schedule_is_recognised_and_idles_by_its_formula(schedule: str, shape: Shape) -> None:
    analysis = analyzed(pipeline_of(schedule, shape).ranks())
    theory = bubble_ratio(schedule, shape)
    assert theory is not None
    work = 30 * shape.chunks * shape.microbatches
    assert parts(analysis) == [(round(work * theory / (1 - theory)), 0, 0, 0)] * shape.ranks
    bubble = bubble_of(analysis)
    assert (bubble.schedule, bubble.shape) == (schedule, shape)
    assert (bubble.fraction_ratio, bubble.theory_ratio, bubble.replay_ratio) == pytest.approx((theory,) * 3)


@pytest.mark.parametrize(("schedule", "shape"), SHAPES[1:])
def test_a_slow_stage_among_several_of_a_rank_is_imbalance_alone(schedule: str, shape: Shape) -> None:
    uneven = pipeline_of(schedule, shape, slow=1)
    idle = [uneven.end() - sum(uneven.length(action) for action in order) for order in uneven.orders.values()]
    analysis = parts(analyzed(uneven.ranks()))
    assert [schedule_ns + imbalance_ns for schedule_ns, imbalance_ns, _, _ in analysis] == idle
    assert [(transfer, jitter) for _, _, transfer, jitter in analysis] == [(0, 0)] * shape.ranks
    assert max(imbalance_ns for _, imbalance_ns, _, _ in analysis) > 0


def test_stages_of_one_rank_share_an_entry() -> None:
    stages = bubble_of(analyzed(pipeline_of("zb-v", Shape(ranks=2, microbatches=4, chunks=2)).ranks())).stages
    assert [(stage_.stage, stage_.others, stage_.ranks) for stage_ in stages] == [(0, (3,), (0,)), (1, (2,), (1,))]


def test_the_timetable_is_that_of_the_step_of_median_length() -> None:
    """Four steps take 150, 160, 170 and 180 ns: the timetable is that of the shorter middle one, from its begin."""
    once = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20))
    ranks = []
    for number in (0, 1):
        rows = [row for row in once.rows(number) if row.kind.name == "ACTION"]
        records, begin = [], 0
        for at, length in enumerate([500, 180, 150, 170, 160]):
            records.append(step(at, begin, begin + length))
            records += [
                action(r.name, begin + r.start_ns, begin + r.end_ns, stage=number, microbatch=r.sequence, at=at)
                for r in rows
            ]
            begin += length
        ranks.append(rank(number, *records, coords={"pp": number}))
    bubble = bubble_of(analyzed(ranks))
    assert bubble.step == 4
    assert bubble.timetable is not None
    assert bubble.timetable.span == 150
    assert [(str(ran.action), ran.start, ran.end) for ran in bubble.timetable.rows[1]][:5] == [
        ("1F0", 10, 20), ("1F1", 20, 30), ("1F2", 30, 40), ("1F3", 40, 50), ("1B0", 50, 70),
    ]  # fmt: skip


@pytest.mark.parametrize("late", [Action("F", 0, 1), Action("B", 1, 2)])
def test_one_late_action_is_jitter(late: Action) -> None:
    """The late action makes the other stage idle 50 longer, and does not change its own stage's median."""
    noisy = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20), late={late: 50})
    other = 1 - late.stage
    analysis = parts(analyzed(noisy.ranks()))
    assert analysis[other] == (30, 0, 0, 50)
    assert analysis[late.stage] == (30, 0, 0, 0)


def test_idle_time_after_the_slowest_stage_is_not_bubble() -> None:
    even = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20))
    analysis = analyzed(even.ranks(until=even.end() + 40))
    assert parts(analysis) == [(30, 0, 0, 0)] * 2
    assert [ledger.total("unattributed") for ledger in analysis.ledger.ranks] == [40, 40]


@pytest.fixture
def even() -> Pipeline:
    """Two stages, four microbatches, 150 ns: rank 1 idles in [0, 10) and [130, 150), rank 0 in [40, 70)."""
    return Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20))


def with_extra(pipeline: Pipeline, *rows: Row, until: int = 150) -> Analysis:
    return analyzed(pipeline.ranks(until=until, extra={1: list(rows)}))


def test_a_named_term_in_the_window_stays_that_term(even: Pipeline) -> None:
    """The rank loads data in the bubble: the schedule still explains 30, so jitter is -12."""
    analysis = with_extra(even, phase(Phase.DATA_WAIT, 135, 147))
    assert analysis.ledger.ranks[1].total("data_wait") == 12
    assert parts(analysis)[1] == (30, 0, 0, -12)


def test_stalls_of_any_collective_in_the_window_are_bubble(even: Pipeline) -> None:
    reduce = collective(131, 150, name="reduce_scatter", group=1)
    analysis = with_extra(even, reduce, stall(reduce, 131, 150))
    assert parts(analysis)[1] == (30, 0, 0, 0)
    assert analysis.ledger.ranks[1].total("exposed_transfer[fsdp]") in (None, 0)


def test_after_the_window_a_collective_is_exposed_on_its_own_axis(even: Pipeline) -> None:
    reduce = collective(131, 170, name="reduce_scatter", group=1)
    analysis = with_extra(even, reduce, stall(reduce, 131, 170), until=170)
    assert analysis.ledger.ranks[1].total("exposed_transfer[fsdp]") == 20
    assert parts(analysis)[1] == (30, 0, 0, 0)


def test_a_collective_inside_an_action_stays_with_its_axis(even: Pipeline) -> None:
    gather = collective(12, 17, group=1)
    analysis = with_extra(even, gather, stall(gather, 12, 17))
    assert analysis.ledger.ranks[1].total("exposed_transfer[fsdp]") == 5
    assert analysis.ledger.ranks[1].total("forward") == 35
    assert parts(analysis)[1] == (30, 0, 0, 0)


def test_two_replicas_have_windows_of_their_own() -> None:
    """Ranks 0 and 2 are one pipeline, 1 and 3 another, twice as slow: the fast one's rest is not bubble."""
    ranks = []
    for replica, scale in ((0, 1), (1, 2)):
        pipeline = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10 * scale, backward=20 * scale))
        for stage in (0, 1):
            plain = [row for row in pipeline.rows(stage) if row.kind.name == "ACTION"]
            coords = {"pp": stage, "fsdp": replica}
            ranks.append(rank(2 * stage + replica, step(0, 0, 300), *plain, coords=coords))
    analysis = analyzed(sorted(ranks, key=lambda stage_: stage_.rank))
    assert parts(analysis) == [(30, 0, 0, 0), (60, 0, 0, 0), (30, 0, 0, 0), (60, 0, 0, 0)]
    assert [stage.ranks for stage in bubble_of(analysis).stages] == [(0, 1), (2, 3)]


def test_a_schedule_that_runs_twice_per_step_is_recognised_by_one_round() -> None:
    """Gradient accumulation: two rounds of GPipe with 4 microbatches idle twice 30."""
    once = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20))
    ranks = []
    for stage in (0, 1):
        first = [row for row in once.rows(stage) if row.kind.name == "ACTION"]
        again = [
            action(row.name, row.start_ns + 150, row.end_ns + 150, stage=stage, microbatch=row.sequence)
            for row in first
        ]
        ranks.append(rank(stage, step(0, 0, 300), *first, *again, coords={"pp": stage}))
    bubble = bubble_of(analyzed(ranks))
    assert (bubble.schedule, bubble.num_microbatches, bubble.theory_ratio) == ("gpipe", 4, pytest.approx(1 / 5))


def test_an_unknown_order_has_a_replay_but_no_formula() -> None:
    backwards_reversed: Orders = {s: (*order[:4], *reversed(order[4:])) for s, order in gpipe(2, 4).items()}
    bubble = bubble_of(
        analyzed(Pipeline(orders=backwards_reversed, durations=lengths(2, forward=10, backward=20)).ranks())
    )
    assert (bubble.schedule, bubble.theory_ratio, bubble.replay_ratio) == ("custom", None, pytest.approx(1 / 5))


def test_actions_of_an_evaluation_are_not_pipeline_work(even: Pipeline) -> None:
    """Three forwards of 10 after the training's window: evaluation, and the window ends where it did."""
    forwards = [action("F", 160 + 10 * m, 170 + 10 * m, stage=1, microbatch=m, of=Phase.EVALUATION) for m in range(3)]
    analysis = with_extra(even, phase(Phase.EVALUATION, 155, 195), *forwards, until=200)
    assert parts(analysis) == [(30, 0, 0, 0)] * 2
    assert (analysis.ledger.ranks[1].evaluation_ns, analysis.ledger.ranks[1].total("forward")) == (40, 40)
    assert bubble_of(analysis).num_microbatches == 4


def test_a_run_without_a_pipeline_has_no_bubble() -> None:
    analysis = analyzed([rank(0, step(0, 0, 100), phase(Phase.FORWARD, 0, 50))])
    assert analysis.bubble is None
    assert not any(term.startswith("bubble") for term in analysis.ledger.order)


def test_a_stages_wait_for_one_without_records_is_an_ambiguous_wait() -> None:
    """The cause may be the schedule, a slow stage or a late one: without the other stage there is no replay."""
    alone = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20)).ranks()[1:]
    analysis = analyzed(alone)
    assert parts(analysis) == [(None, None, 10, None)]
    assert analysis.ledger.ambiguous_waits() == {("pp", AmbiguousWait.NOT_REPLAYED): 10}
    assert analysis.bubble is None


def several(pipeline: Pipeline, rank: int, count: int) -> list[Row]:
    """Record consecutive steps with the rank's actions and messages in each."""
    rows = []
    for number in range(count):
        begin = number * pipeline.end()
        rows.append(step(number, begin, begin + pipeline.end()))
        for row in pipeline.rows(rank):
            sequence = row.sequence + (0 if row.kind == Kind.ACTION else 10_000 * number)
            times = {"start_ns": row.start_ns + begin, "end_ns": row.end_ns + begin}
            rows.append(replace(row, **times, step=number, sequence=sequence))
    return rows


def test_a_step_that_one_stage_did_not_complete_has_no_jitter(even: Pipeline) -> None:
    """Rank 0 is killed in step 2: there rank 1 stalls for 10, and 20 are covered by no probe."""
    killed, survivor = several(even, 0, 3), several(even, 1, 3)
    killed = [replace(row, end_ns=OPEN) if row.kind == Kind.STEP and row.step == 2 else row for row in killed]
    groups = even.groups()
    analysis = analyzed(
        [rank(0, *killed, groups=groups, coords={"pp": 0}, ending=None), rank(1, *survivor, groups=groups)]
    )
    assert [ledger.numbers[ledger.counted].tolist() for ledger in analysis.ledger.ranks] == [[1], [1, 2]]
    assert parts(analysis) == [(30, 0, 0, 0), (30, 0, 10, 0)]
    assert analysis.ledger.ranks[1].total("unattributed") == 20
    assert analysis.ledger.ambiguous_waits() == {("pp", AmbiguousWait.NOT_REPLAYED): 10}
    assert [stage.fraction_ratio for stage in bubble_of(analysis).stages] == pytest.approx([1 / 5, 1 / 5])
    (finding,) = (finding for finding in analysis.verdict if finding.kind == "pipeline_bubble")
    assert finding.evidence.startswith("the pipeline idles 20.0 % of step time: 20.0 % schedule, ")


def test_the_slowest_stage_of_a_rank_is_known() -> None:
    uneven = pipeline_of("interleaved", Shape(ranks=2, microbatches=4, chunks=2), slow=2)
    assert [(stage_.stage, stage_.others, stage_.slowest) for stage_ in bubble_of(analyzed(uneven.ranks())).stages] == [
        (0, (2,), 2),
        (1, (3,), 1),
    ]
