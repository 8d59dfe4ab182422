"""Pipeline schedules, against orders drawn on paper, torch's own orders, and the claims of their papers."""

from collections.abc import Iterator
from itertools import accumulate, product
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torch_schedules

from traincope.errors import UsageError
from traincope.plan.pipeline.actions import Order
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders, resolve_schedule
from traincope.plan.pipeline.schedule import finish

names = st.sampled_from(tuple(SCHEDULES))
sizes = st.builds(Shape, ranks=st.integers(1, 6), microbatches=st.integers(1, 20), chunks=st.integers(1, 3))


def supported_sizes() -> st.SearchStrategy[tuple[str, Shape]]:
    return st.tuples(names, sizes).filter(lambda pair: SCHEDULES[pair[0]].refusal(pair[1]) is None)


def as_text(order: Order) -> str:
    return " ".join(str(action) for action in order)


@pytest.mark.parametrize(
    ("name", "rank", "shape", "order"),
    [
        ("naive", 1, Shape(ranks=2, microbatches=2), "1F0 1B0 1F1 1B1"),
        ("gpipe", 1, Shape(ranks=2, microbatches=3), "1F0 1F1 1F2 1B0 1B1 1B2"),
        ("1f1b", 0, Shape(ranks=3, microbatches=4), "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"),
        ("1f1b", 1, Shape(ranks=3, microbatches=4), "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3"),
        ("1f1b", 2, Shape(ranks=3, microbatches=4), "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"),
        ("1f1b", 0, Shape(ranks=4, microbatches=2), "0F0 0F1 0B0 0B1"),
        ("interleaved", 1, Shape(ranks=2, microbatches=2, chunks=2), "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"),
        ("zb-1p", 0, Shape(ranks=2, microbatches=3), "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2"),
        ("zb-1p", 1, Shape(ranks=2, microbatches=3), "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"),
        (
            "zb-v",
            1,
            Shape(ranks=2, microbatches=3, chunks=2),
            "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
        ),
        (
            "dualpipev",
            1,
            Shape(ranks=2, microbatches=4, chunks=2),
            "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3",
        ),
    ],
)
def test_the_order_of_a_rank_is_that_of_the_paper(name: str, rank: int, shape: Shape, order: str) -> None:
    assert as_text(orders(name, shape)[rank]) == order


@given(pair=supported_sizes())
def test_each_stage_runs_each_microbatch_forward_once_and_then_backward_once(pair: tuple[str, Shape]) -> None:
    name, shape = pair
    for rank, order in orders(name, shape).items():
        position = {(action.stage, action.microbatch, action.kind): at for at, action in enumerate(order)}
        assert len(position) == len(order)
        stages = SCHEDULES[name].placement(rank, shape)
        assert {action.stage for action in order} == set(stages)
        for stage, microbatch in product(stages, range(shape.microbatches)):
            kinds = [kind for kind in "FBIW" if (stage, microbatch, kind) in position]
            assert kinds in (["F", "B"], ["F", "I", "W"])
            assert [position[stage, microbatch, kind] for kind in kinds] == sorted(
                position[stage, microbatch, kind] for kind in kinds
            )


@given(pair=supported_sizes())
def test_only_schedules_marked_as_such_split_backward(pair: tuple[str, Shape]) -> None:
    name, shape = pair
    split = any(action.kind == "W" for order in orders(name, shape).values() for action in order)
    assert split == SCHEDULES[name].splits_backward


@given(pair=supported_sizes())
def test_orders_of_all_schedules_can_run(pair: tuple[str, Shape]) -> None:
    rank_orders = orders(*pair)
    durations = {(action.kind, action.stage): 1 for order in rank_orders.values() for action in order}
    ends = finish(rank_orders, durations, {})
    assert ends is not None
    assert len(ends) == sum(len(order) for order in rank_orders.values())


def held(order: Order) -> int:
    """Most microbatches of a stage whose activations a rank holds at once, from F to the end of the backward."""
    change = {"F": 1, "B": -1, "W": -1, "I": 0}
    return max(accumulate(change[action.kind] for action in order))


@given(shape=st.builds(Shape, ranks=st.integers(1, 8), microbatches=st.integers(1, 24)))
def test_1f1b_holds_p_minus_rank_microbatches_and_zb_1p_p(shape: Shape) -> None:
    """Narayanan et al. 2021, section 2.2; Qi et al. 2023, table 2: p M_B for both."""
    for rank, order in orders("1f1b", shape).items():
        assert held(order) == min(shape.ranks - rank, shape.microbatches)
    for order in orders("zb-1p", shape).values():
        assert held(order) == min(shape.ranks, shape.microbatches)


@given(ranks=st.integers(1, 8), rounds=st.integers(1, 3), chunks=st.integers(2, 4))
def test_interleaved_holds_the_chunks_of_one_round_and_two_more_for_each_later_rank(
    ranks: int, rounds: int, chunks: int
) -> None:
    shape = Shape(ranks=ranks, microbatches=ranks * rounds, chunks=chunks)
    for rank, order in orders("interleaved", shape).items():
        ahead = (chunks - 1) * ranks + 2 * (ranks - 1 - rank)
        assert held(order) == min(ahead + 1, chunks * shape.microbatches)


@given(ranks=st.integers(1, 8), more=st.integers(0, 8))
def test_zb_v_holds_as_much_as_1f1bs_first_rank_in_halves(ranks: int, more: int) -> None:
    """Qi et al. 2023, section 6: p M_B, and a chunk's activations are half of a stage's."""
    shape = Shape(ranks=ranks, microbatches=2 * ranks - 1 + more, chunks=2)
    assert max(held(order) for order in orders("zb-v", shape).values()) <= 2 * ranks


@given(ranks=st.integers(1, 8), more=st.integers(0, 8))
def test_dualpipev_holds_one_half_more(ranks: int, more: int) -> None:
    """The table in github.com/deepseek-ai/DualPipe: PP + 1 of PP stages."""
    shape = Shape(ranks=ranks, microbatches=2 * ranks + more, chunks=2)
    assert max(held(order) for order in orders("dualpipev", shape).values()) <= 2 * ranks + 1


TORCH_NAMES = {
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb-1p": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
"""Names of torch's schedules.
Without 1F1B: torch reports an order that it does not run, and for one rank it begins with 0F1."""


def torch_order(name: str, shape: Shape) -> list[str]:
    """Order that torch's schedule of that name would run, without a process group."""
    schedule = object.__new__(getattr(torch_schedules, TORCH_NAMES[name]))
    schedule.pp_group_size, schedule._num_stages, schedule.num_stages = shape.ranks, shape.stages, shape.stages
    schedule._n_microbatches, schedule.n_local_stages = shape.microbatches, shape.chunks
    schedule.microbatches_per_round = shape.microbatches // max(1, shape.microbatches // shape.ranks)
    if name == "gpipe":
        actions = schedule._get_pipeline_order()
    else:
        actions = {rank: schedule._calculate_single_rank_operations(rank) for rank in range(shape.ranks)}
    return [" ".join(_plain(actions[rank], torch_schedules)) for rank in range(shape.ranks)]


def _plain(actions: list[object], module: ModuleType) -> Iterator[str]:
    """The order without idle slots, and with overlapped pairs one after the other."""
    for action in actions:
        assert action is None or isinstance(action, module._Action)
        if action is not None and action.computation_type != module.REDUCE_GRAD:
            yield from map(str, action.sub_actions or (action,))


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_torch_has_the_same_orders(name: str) -> None:
    schedule = SCHEDULES[name]
    for ranks, microbatches, chunks in product(range(1, 6), (2, 4, 6, 8, 12, 15), (1, 2, 3)):
        shape = Shape(ranks=ranks, microbatches=microbatches, chunks=chunks)
        if schedule.refusal(shape) is None:
            assert [as_text(order) for order in orders(name, shape).values()] == torch_order(name, shape)


def test_1f1b_with_several_stages_per_rank_is_interleaved_1f1b() -> None:
    assert resolve_schedule("1f1b") == ("1f1b", 1)
    assert resolve_schedule("1f1b", chunks=3) == ("interleaved", 3)
    assert resolve_schedule("interleaved") == ("interleaved", 2)
    assert resolve_schedule("zb-v") == ("zb-v", 2)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("gpipe", Shape(ranks=2, microbatches=4, chunks=2), "gpipe needs 1 stage per rank, not 2"),
        ("interleaved", Shape(ranks=2, microbatches=4), "interleaved needs 2 or more stages per rank, not 1"),
        (
            "interleaved",
            Shape(ranks=4, microbatches=6, chunks=2),
            "interleaved needs a multiple of 4 microbatches, one for each rank, not 6",
        ),
        (
            "dualpipev",
            Shape(ranks=4, microbatches=7, chunks=2),
            "dualpipev needs at least 8 microbatches, one for each stage, not 7",
        ),
    ],
)
def test_a_size_that_a_schedule_cannot_have_is_refused(name: str, shape: Shape, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        orders(name, shape)
    assert str(refused.value) == sentence


def test_an_unknown_schedule_is_reported_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="schedule 'zigzag' is not known; choose one of gpipe, 1f1b, interleaved"):
        resolve_schedule("zigzag")


@pytest.mark.parametrize("name", ["ranks", "microbatches", "chunks"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 0; it must be at least 1"):
        Shape(**({"ranks": 2, "microbatches": 2} | {name: 0}))
