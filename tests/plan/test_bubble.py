"""The papers' bubble formulas, on numbers that can be checked by eye."""

import re

import pytest

from traincope.errors import UsageError
from traincope.plan.bubble import bubble_over_ideal, bubble_ratio


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "ratio"),
    [
        ("gpipe", 2, 4, 1 / 5),
        ("gpipe", 4, 8, 3 / 11),
        ("1f1b", 4, 16, 3 / 19),
        ("1f1b", 8, 1, 7 / 8),
        ("1f1b", 1, 5, 0),
    ],
)
def test_idle_share_of_total_time(schedule: str, stages: int, microbatches: int, ratio: float) -> None:
    assert bubble_ratio(schedule, stages=stages, microbatches=microbatches) == pytest.approx(ratio)


def test_interleaving_v_chunks_divides_the_bubble_by_about_v() -> None:
    assert bubble_ratio("interleaved", stages=4, microbatches=8, chunks=2) == pytest.approx(3 / 19)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_over_ideal_time_it_is_the_fraction_that_papers_print(schedule: str) -> None:
    assert bubble_over_ideal(schedule, stages=4, microbatches=8) == pytest.approx(3 / 8)


def test_interleaved_over_ideal_time() -> None:
    assert bubble_over_ideal("interleaved", stages=4, microbatches=8, chunks=2) == pytest.approx(3 / 16)


def test_an_unknown_schedule_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no bubble formula for schedule 'dualpipe'; known are gpipe, 1f1b"):
        bubble_ratio("dualpipe", stages=2, microbatches=2)


@pytest.mark.parametrize("sizes", [{"stages": 0}, {"microbatches": 0}, {"chunks": 0}])
def test_sizes_below_one_are_refused(sizes: dict[str, int]) -> None:
    (name,) = sizes
    with pytest.raises(UsageError, match=re.escape(f"{name} = 0 must be at least 1")):
        bubble_ratio("1f1b", **({"stages": 2, "microbatches": 2} | sizes))
