"""Pipeline idle time split into schedule, imbalance, transfer and jitter: each case has one cause."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.analysis.orders import Orders, gpipe, one_forward_one_backward
from tests.analysis.pipelines import Pipeline
from tests.timeline.build import Row, action, collective, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, Bubble, analyze
from traincope.analysis.unsplit import Unsplit
from traincope.events import OPEN, Kind, Phase
from traincope.plan.actions import Action
from traincope.plan.bubble import bubble_ratio
from traincope.plan.orders import Shape, orders
from traincope.plan.schedule import Key
from traincope.store import RankRecords

TERMS = ("bubble.schedule", "bubble.imbalance", "exposed_transfer[pp]", "bubble.jitter")


def lengths(stages: int, *, forward: int, backward: int, slow: int | None = None) -> dict[Key, int]:
    """Every stage alike, but for one that is 25 % slower."""
    plain = {(kind, s): ns for s in range(stages) for kind, ns in (("F", forward), ("B", backward))}
    return {(kind, s): ns * 5 // 4 if s == slow else ns for (kind, s), ns in plain.items()}


def analyzed(ranks: list[RankRecords]) -> Analysis:
    found = analyze(timeline(*ranks))
    for ledger in found.ledger.ranks:
        summed = sum(ns for ns in ledger.terms.values() if ns is not None)
        assert (ledger.wall_ns == summed).all()
    assert "exposed_wait[pp]" not in found.ledger.order
    return found


def parts(found: Analysis) -> list[tuple[int | None, ...]]:
    """(schedule, imbalance, transfer, jitter) of each rank."""
    return [tuple(ledger.total(term) for term in TERMS) for ledger in found.ledger.ranks]


def bubble_of(found: Analysis) -> Bubble:
    assert found.bubble is not None
    return found.bubble


@pytest.mark.parametrize("order", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 16)])
def test_equal_stages_idle_for_the_schedule_alone_and_as_theory_says(
    order: Callable[[int, int], Orders], stages: int, microbatches: int
) -> None:
    even = Pipeline(orders=order(stages, microbatches), durations=lengths(stages, forward=10, backward=20))
    found = analyzed(even.ranks())
    assert parts(found) == [((stages - 1) * 30, 0, 0, 0)] * stages
    theory = float(Fraction(stages - 1, microbatches + stages - 1))
    bubble = bubble_of(found)
    assert (bubble.fraction_ratio, bubble.theory_ratio, bubble.replay_ratio) == pytest.approx((theory, theory, theory))
    assert (bubble.num_stages, bubble.num_microbatches) == (stages, microbatches)
    assert bubble.schedule == ("gpipe" if order is gpipe else "1f1b")


def test_a_slow_stage_is_imbalance_and_the_schedule_is_told_on_means() -> None:
    """F = 16 and B = 32, stage 1 has 20 and 40: means 17 and 34, so schedule = 3 x 51."""
    uneven = Pipeline(orders=gpipe(4, 8), durations=lengths(4, forward=16, backward=32, slow=1))
    found = analyzed(uneven.ranks())
    pool = [uneven.end() - 8 * 48, uneven.end() - 8 * 60, uneven.end() - 8 * 48, uneven.end() - 8 * 48]
    assert parts(found) == [(153, ns - 153, 0, 0) for ns in pool]
    imbalances = [stage.imbalance_ns for stage in bubble_of(found).stages]
    assert min(imbalances) == imbalances[1] < 0 < imbalances[0]


def test_transfers_that_the_replay_waits_for_are_exposed_and_nothing_is_jitter() -> None:
    sent = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20), transfer_ns=7)
    assert parts(analyzed(sent.ranks())) == [(30, 0, 14, 0)] * 2


def test_a_message_that_came_while_its_receiver_was_busy_was_not_slow() -> None:
    """Forwards of stage 1 take twice as long, so all but the first lie there until they are looked for."""
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


def made(schedule: str, shape: Shape, *, slow: int | None = None) -> Pipeline:
    durations = {
        (kind, stage): ns * 5 // 4 if stage == slow else ns
        for kind, ns in (EVERY_KIND | {"F": 8, "I": 8, "W": 8, "B": 16} if slow is not None else EVERY_KIND).items()
        for stage in range(shape.stages)
    }
    return Pipeline(orders=orders(schedule, shape), durations=durations)


@pytest.mark.parametrize(("schedule", "shape"), SHAPES)
def test_every_schedule_is_recognised_and_idles_by_its_formula(schedule: str, shape: Shape) -> None:
    found = analyzed(made(schedule, shape).ranks())
    theory = bubble_ratio(schedule, shape)
    assert theory is not None
    work = 30 * shape.chunks * shape.microbatches
    assert parts(found) == [(round(work * theory / (1 - theory)), 0, 0, 0)] * shape.ranks
    bubble = bubble_of(found)
    assert (bubble.schedule, bubble.shape) == (schedule, shape)
    assert (bubble.fraction_ratio, bubble.theory_ratio, bubble.replay_ratio) == pytest.approx((theory,) * 3)


@pytest.mark.parametrize(("schedule", "shape"), SHAPES[1:])
def test_a_slow_stage_among_several_of_a_rank_is_imbalance_alone(schedule: str, shape: Shape) -> None:
    uneven = made(schedule, shape, slow=1)
    idle = [uneven.end() - sum(uneven.length(action) for action in order) for order in uneven.orders.values()]
    found = parts(analyzed(uneven.ranks()))
    assert [schedule_ns + imbalance_ns for schedule_ns, imbalance_ns, _, _ in found] == idle
    assert [(transfer, jitter) for _, _, transfer, jitter in found] == [(0, 0)] * shape.ranks
    assert max(imbalance_ns for _, imbalance_ns, _, _ in found) > 0


def test_stages_of_one_rank_share_an_entry_for_they_idle_together() -> None:
    stages = bubble_of(analyzed(made("zb-v", Shape(ranks=2, microbatches=4, chunks=2)).ranks())).stages
    assert [(one.stage, one.others, one.ranks) for one in stages] == [(0, (3,), (0,)), (1, (2,), (1,))]


def test_the_timetable_is_that_of_the_step_of_median_length() -> None:
    """Four steps as long as 150, 160, 170, 180 ns: the shorter one in the middle is drawn, from its begin."""
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
    """It makes the other stage idle 50 longer, and its own median does not see it."""
    noisy = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20), late={late: 50})
    other = 1 - late.stage
    found = parts(analyzed(noisy.ranks()))
    assert found[other] == (30, 0, 0, 50)
    assert found[late.stage] == (30, 0, 0, 0)


def test_after_the_slowest_stage_is_done_idle_time_is_no_bubble() -> None:
    even = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20))
    found = analyzed(even.ranks(until=even.end() + 40))
    assert parts(found) == [(30, 0, 0, 0)] * 2
    assert [ledger.total("unattributed") for ledger in found.ledger.ranks] == [40, 40]


@pytest.fixture
def even() -> Pipeline:
    """Two stages, four microbatches, 150 ns: rank 1 idles in [0, 10) and [130, 150), rank 0 in [40, 70)."""
    return Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20))


def with_extra(pipeline: Pipeline, *rows: Row, until: int = 150) -> Analysis:
    return analyzed(pipeline.ranks(until=until, extra={1: list(rows)}))


def test_what_has_a_name_in_the_window_keeps_it(even: Pipeline) -> None:
    """Fetching data in the bubble: the schedule still explains 30, so 12 less are left: jitter -12."""
    found = with_extra(even, phase(Phase.DATA_WAIT, 135, 147))
    assert found.ledger.ranks[1].total("data_wait") == 12
    assert parts(found)[1] == (30, 0, 0, -12)


def test_waiting_in_any_collective_before_the_window_ends_is_bubble(even: Pipeline) -> None:
    reduce = collective(131, 150, name="reduce_scatter", group=1)
    found = with_extra(even, reduce, stall(reduce, 131, 150))
    assert parts(found)[1] == (30, 0, 0, 0)
    assert found.ledger.ranks[1].total("exposed_transfer[fsdp]") in (None, 0)


def test_after_the_window_a_collective_is_exposed_on_its_own_axis(even: Pipeline) -> None:
    reduce = collective(131, 170, name="reduce_scatter", group=1)
    found = with_extra(even, reduce, stall(reduce, 131, 170), until=170)
    assert found.ledger.ranks[1].total("exposed_transfer[fsdp]") == 20
    assert parts(found)[1] == (30, 0, 0, 0)


def test_a_collective_inside_an_action_stays_with_its_axis(even: Pipeline) -> None:
    gather = collective(12, 17, group=1)
    found = with_extra(even, gather, stall(gather, 12, 17))
    assert found.ledger.ranks[1].total("exposed_transfer[fsdp]") == 5
    assert found.ledger.ranks[1].total("forward") == 35
    assert parts(found)[1] == (30, 0, 0, 0)


def test_two_replicas_have_windows_of_their_own() -> None:
    """Ranks 0 and 2 are one pipeline, 1 and 3 another, twice as slow: the fast one's rest is no bubble."""
    ranks = []
    for replica, scale in ((0, 1), (1, 2)):
        pipeline = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10 * scale, backward=20 * scale))
        for stage in (0, 1):
            plain = [row for row in pipeline.rows(stage) if row.kind.name == "ACTION"]
            coords = {"pp": stage, "fsdp": replica}
            ranks.append(rank(2 * stage + replica, step(0, 0, 300), *plain, coords=coords))
    found = analyzed(sorted(ranks, key=lambda one: one.rank))
    assert parts(found) == [(30, 0, 0, 0), (60, 0, 0, 0), (30, 0, 0, 0), (60, 0, 0, 0)]
    assert [stage.ranks for stage in bubble_of(found).stages] == [(0, 1), (2, 3)]


def test_a_schedule_that_runs_twice_a_step_is_told_by_one_of_its_rounds() -> None:
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


def test_actions_of_an_evaluation_are_no_pipeline_work(even: Pipeline) -> None:
    """Three forwards of 10 after the training's window: evaluation, and the window ends where it did."""
    forwards = [action("F", 160 + 10 * m, 170 + 10 * m, stage=1, microbatch=m, of=Phase.EVALUATION) for m in range(3)]
    found = with_extra(even, phase(Phase.EVALUATION, 155, 195), *forwards, until=200)
    assert parts(found) == [(30, 0, 0, 0)] * 2
    assert (found.ledger.ranks[1].evaluation_ns, found.ledger.ranks[1].total("forward")) == (40, 40)
    assert bubble_of(found).num_microbatches == 4


def test_a_run_without_a_pipeline_has_no_bubble() -> None:
    found = analyzed([rank(0, step(0, 0, 100), phase(Phase.FORWARD, 0, 50))])
    assert found.bubble is None
    assert not any(term.startswith("bubble") for term in found.ledger.order)


def test_what_a_stage_waits_for_one_that_left_nothing_is_told_as_what_cannot_be_told() -> None:
    """It may be the schedule, a slow stage or a late one: without the other stage there is no replay to say so."""
    alone = Pipeline(orders=gpipe(2, 4), durations=lengths(2, forward=10, backward=20)).ranks()[1:]
    found = analyzed(alone)
    assert parts(found) == [(None, None, 10, None)]
    assert found.ledger.unsplit() == {("pp", Unsplit.NOT_REPLAYED): 10}
    assert found.bubble is None


def several(pipeline: Pipeline, rank: int, count: int) -> list[Row]:
    """So many steps one after the other, and the rank's actions and messages in each."""
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
    """Rank 0 is killed in step 2: there rank 1 stands still for 10 and is in nothing for 20, whyever."""
    killed, survivor = several(even, 0, 3), several(even, 1, 3)
    killed = [replace(row, end_ns=OPEN) if row.kind == Kind.STEP and row.step == 2 else row for row in killed]
    groups = even.groups()
    found = analyzed(
        [rank(0, *killed, groups=groups, coords={"pp": 0}, ending=None), rank(1, *survivor, groups=groups)]
    )
    assert [ledger.numbers[ledger.counted].tolist() for ledger in found.ledger.ranks] == [[1], [1, 2]]
    assert parts(found) == [(30, 0, 0, 0), (30, 0, 10, 0)]
    assert found.ledger.ranks[1].total("unattributed") == 20
    assert found.ledger.unsplit() == {("pp", Unsplit.NOT_REPLAYED): 10}
    assert [stage.fraction_ratio for stage in bubble_of(found).stages] == pytest.approx([1 / 5, 1 / 5])
    (finding,) = (finding for finding in found.verdict if finding.kind == "pipeline_bubble")
    assert finding.evidence.startswith("the pipeline idles 20.0 % of a step: 20.0 % schedule, ")


def test_of_a_ranks_stages_the_one_that_computes_longest_is_known() -> None:
    uneven = made("interleaved", Shape(ranks=2, microbatches=4, chunks=2), slow=2)
    assert [(one.stage, one.others, one.slowest) for one in bubble_of(analyzed(uneven.ranks())).stages] == [
        (0, (2,), 2),
        (1, (3,), 1),
    ]
