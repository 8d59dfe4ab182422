"""Sampling: nested windows, drawn by the run's id, as many as the measured cost of detail allows."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincope.events import BLOCK_STEPS
from traincope.record.session.sampling import (
    FIRST_BLOCKS,
    MAX_HALVINGS,
    MIN_JUDGED_STEPS,
    Sampling,
    is_window,
    needed_halvings,
)
from traincope.record.session.steps import StepCost

WALL_NS = 10_000_000
RUNS = st.text(max_size=8)


def windows(halvings: int, *, seed: str, blocks: int = 1 << 12) -> list[int]:
    return [block for block in range(blocks) if is_window(block, halvings=halvings, seed=seed)]


@settings(max_examples=40)
@given(seed=RUNS, halvings=st.integers(0, MAX_HALVINGS))
def test_each_stratum_has_exactly_one_window(seed: str, halvings: int) -> None:
    assert [block >> halvings for block in windows(halvings, seed=seed)] == list(range((1 << 12) >> halvings))


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=RUNS)
def test_windows_after_a_halving_are_among_those_before(seed: str) -> None:
    nested = [set(windows(halvings, seed=seed)) for halvings in range(MAX_HALVINGS + 1)]
    assert all(later < earlier for earlier, later in pairwise(nested))


def test_windows_do_not_keep_a_distance_that_could_align_with_checkpoints() -> None:
    chosen = windows(4, seed="run")
    distances = {after - before for before, after in pairwise(chosen)}
    assert len(distances) > 20
    assert len({block % 16 for block in chosen}) == 16


@pytest.mark.parametrize("period", [2, 4, 8, 10, 16, 50, 64, 100])
def test_work_in_every_nth_step_is_sampled_like_any_other(period: int) -> None:
    """The first step of a window is not sampled."""
    starts = (block * BLOCK_STEPS for block in windows(2, seed="run"))
    sampled = [start + place for start in starts for place in range(1, BLOCK_STEPS)]
    times = Counter(step % period for step in sampled)
    assert len(times) == period
    assert min(times.values()) > len(sampled) / period / 2


def test_runs_have_windows_of_their_own() -> None:
    assert windows(4, seed="a") != windows(4, seed="b")


def test_cheap_detail_is_recorded_in_every_step() -> None:
    assert needed_halvings(50_000, 10_000, WALL_NS, budget=0.005) == 0


def test_the_share_of_detail_keeps_the_budget_on_average() -> None:
    """10 of 50 us are needed between windows. 40 remain for a detail of 150: one window in 3.75, so one in 4."""
    assert needed_halvings(160_000, 10_000, WALL_NS, budget=0.005) == 2
    assert 10_000 + 150_000 / 4 <= 0.005 * WALL_NS < 10_000 + 150_000 / 2


def test_where_light_steps_take_the_whole_budget_detail_still_has_a_fifth_of_it() -> None:
    """A fifth of 50 us for a detail of 100: one window in 10, so one in 16."""
    assert needed_halvings(160_000, 60_000, WALL_NS, budget=0.005) == 4


def test_without_any_budget_windows_are_as_rare_as_possible() -> None:
    assert needed_halvings(160_000, 60_000, WALL_NS, budget=0) == MAX_HALVINGS


def sampled(costs_ns: list[int], *, budget: float | None = 0.005) -> Sampling:
    sampling = Sampling(budget)
    for own_ns in costs_ns:
        sampling.add(StepCost(own_ns, 0, WALL_NS), detailed=True, native=False)
    sampling.is_window(len(costs_ns) // BLOCK_STEPS, seed="run")
    return sampling


def test_one_off_costs_do_not_decide() -> None:
    assert sampled([40_000] * 20 + [50_000_000] * 4).halvings == 0


def test_a_few_steps_are_not_judged() -> None:
    assert sampled([1_000_000] * (MIN_JUDGED_STEPS - 1)).halvings == 0
    assert sampled([1_000_000] * MIN_JUDGED_STEPS).halvings > 0


def test_without_a_budget_every_step_is_recorded_in_detail() -> None:
    assert sampled([WALL_NS] * 100, budget=None).halvings == 0


def test_a_training_whose_steps_grow_is_recorded_more_often() -> None:
    sampling = sampled([400_000] * 40)
    rare = sampling.halvings
    for _ in range(40):
        sampling.add(StepCost(400_000, 0, 100 * WALL_NS), detailed=True, native=False)
    sampling.is_window(0, seed="run")
    assert (rare, sampling.halvings) == (3, 0)


def first_windows(own_ns: int, *, budget: float) -> list[int]:
    """Windows among the first 40 blocks, if each step has this cost."""
    sampling, drawn = Sampling(budget), []
    for block in range(40):
        if sampling.is_window(block, seed="run"):
            drawn.append(block)
        for _ in range(BLOCK_STEPS):
            cost = StepCost(own_ns if block in drawn else 0, 0, WALL_NS)
            sampling.add(cost, detailed=block in drawn, native=False)
    return drawn


def test_the_first_blocks_are_all_windows() -> None:
    """1.5 ms in each of 84 steps are 0.13 s of the 3 s that the budget gives in ten minutes."""
    drawn = first_windows(1_500_000, budget=0.005)
    assert drawn[:FIRST_BLOCKS] == list(range(FIRST_BLOCKS))
    assert len(drawn) < FIRST_BLOCKS + 8


@pytest.mark.parametrize("budget", [0.0001, 0.00001, 0.0])
def test_the_first_blocks_take_no_more_than_the_budget_of_ten_minutes(budget: float) -> None:
    """A block costs 10.5 ms. The first steps are not judged."""
    first = [block for block in first_windows(1_500_000, budget=budget) if block < FIRST_BLOCKS]
    assert 10_500_000 * len(first) <= 600e9 * budget + 2 * 10_500_000
    assert len(first) < FIRST_BLOCKS


def test_where_detail_takes_a_fifth_of_a_step_the_first_blocks_are_drawn_like_others() -> None:
    assert len([block for block in first_windows(WALL_NS // 5, budget=0.005) if block < FIRST_BLOCKS]) < 4


def natively(native_ns: int, *, python_ns: int = 3_000_000) -> int:
    """Return the halvings of a training whose collectives native code records."""
    sampling = Sampling(0.005)
    for _ in range(40):
        sampling.add(StepCost(python_ns + native_ns, native_ns, WALL_NS), detailed=True, native=True)
    sampling.is_window(40 // BLOCK_STEPS, seed="run")
    return sampling.halvings


def test_native_detail_is_in_every_step_whatever_the_hooks_in_python_take() -> None:
    """They take 3 of 10 ms with detail and without."""
    assert natively(200_000) == 0


def test_a_training_of_very_many_collectives_is_recorded_in_windows_natively_too() -> None:
    """0.2 of 10 ms are allowed. 1.6 ms are eight times that."""
    assert natively(1_600_000) == 3


def test_the_costs_of_python_decide_nothing_once_native_code_records() -> None:
    sampling = sampled([1_600_000] * 40)
    for _ in range(MIN_JUDGED_STEPS):
        sampling.add(StepCost(1_600_000, 10_000, WALL_NS), detailed=True, native=True)
    sampling.is_window(45 // BLOCK_STEPS, seed="run")
    assert sampling.halvings == 0


def light_blocks(own_ns: int, light_ns: int) -> list[int]:
    """Blocks without detail among the first 80, natively, if steps have these costs with and without it."""
    sampling, light = Sampling(0.005), []
    for block in range(80):
        if not sampling.is_window(block, seed="run"):
            light.append(block)
        for _ in range(BLOCK_STEPS):
            cost = StepCost(light_ns if block in light else own_ns, 1_000, WALL_NS)
            sampling.add(cost, detailed=block not in light, native=True)
    return light


def test_one_block_shows_what_native_detail_costs_where_all_hooks_together_take_much() -> None:
    assert light_blocks(400_000, 350_000) == [FIRST_BLOCKS]
    assert light_blocks(150_000, 100_000) == []


def test_costly_detail_in_python_is_recorded_in_windows_natively_too() -> None:
    """Modules' spans take 1 of 10 ms, five times as much as is allowed: one window in eight."""
    assert len(light_blocks(1_100_000, 100_000)) >= 80 - FIRST_BLOCKS - 12
