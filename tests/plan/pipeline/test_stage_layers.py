"""Layers of stages: published and hand-made splits, and properties of every split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.plan.pipeline.orders import SCHEDULES, Shape, resolve_schedule
from traincope.plan.pipeline.stage_layers import is_possible, relative_work, stage_layers


def sizes(layers: int, schedule: str, *, ranks: int, chunks: int = 1) -> list[int]:
    shape = Shape(ranks=ranks, microbatches=2 * ranks, chunks=chunks)
    return [len(stage) for stage in stage_layers(layers, schedule=schedule, shape=shape)]


def test_llama_3_has_a_layer_less_on_the_first_and_on_the_last_stage() -> None:
    """Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2.

    With one layer per stage, the first stage of the first rank has only the embedding, and the last one only the
    output and the loss.
    """
    assert sizes(126, "1f1b", ranks=16) == [7, *[8] * 14, 7]
    assert sizes(126, "interleaved", ranks=16, chunks=8) == [0, *[1] * 126, 0]


def test_equal_stages_are_consecutive() -> None:
    split = stage_layers(6, schedule="1f1b", shape=Shape(ranks=3, microbatches=1))
    assert split == (range(2), range(2, 4), range(4, 6))


@pytest.mark.parametrize(
    ("layers", "schedule", "chunks", "expected"),
    [
        (3, "1f1b", 1, [2, 1]),
        (7, "interleaved", 2, [2, 2, 2, 1]),
        (6, "interleaved", 2, [1, 2, 2, 1]),
        (5, "interleaved", 2, [1, 2, 1, 1]),
        (7, "zb-v", 2, [2, 2, 2, 1]),
        (6, "zb-v", 2, [2, 2, 1, 1]),
        (5, "zb-v", 2, [1, 2, 1, 1]),
        (1, "1f1b", 1, [1, 0]),
    ],
)
def test_two_ranks_by_hand(layers: int, schedule: str, chunks: int, expected: list[int]) -> None:
    """In a V, rank 0 has stages 0 and 3: the second shorter stage goes to rank 1, so that both have 3 of 6 layers."""
    assert sizes(layers, schedule, ranks=2, chunks=chunks) == expected


@given(data=st.data(), layers=st.integers(1, 300), ranks=st.integers(1, 16))
def test_layers_are_consecutive_and_spread_evenly_over_stages_and_ranks(
    data: st.DataObject, layers: int, ranks: int
) -> None:
    name = data.draw(st.sampled_from(sorted(SCHEDULES)))
    schedule = SCHEDULES[name]
    chunks = data.draw(st.integers(schedule.min_chunks, schedule.max_chunks or 4))
    shape = Shape(ranks=ranks, microbatches=ranks, chunks=resolve_schedule(name, chunks=chunks)[1])
    split = stage_layers(layers, schedule=name, shape=shape)
    assert [layer for stage in split for layer in stage] == list(range(layers))
    lengths = [len(stage) for stage in split]
    assert max(lengths) - min(lengths) <= 1
    of_ranks = [sum(lengths[stage] for stage in schedule.placement(rank, shape)) for rank in range(ranks)]
    assert max(of_ranks) - min(of_ranks) <= 1
    assert lengths[-1] <= min(lengths[:-1], default=lengths[-1])
    assert sum(relative_work(split).values()) == pytest.approx(shape.stages)


@pytest.mark.parametrize(
    ("layers", "possible"), [(1, False), (2, True), (3, True), (4, True)], ids=["1", "2", "3", "4"]
)
def test_only_the_first_and_the_last_stage_can_be_without_a_layer(layers: int, possible: bool) -> None:
    assert is_possible(stage_layers(layers, schedule="1f1b", shape=Shape(ranks=4, microbatches=4))) == possible
