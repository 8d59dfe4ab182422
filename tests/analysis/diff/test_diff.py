"""Comparison of two runs made by hand: exactly the injected change is found, with its size."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.lockstep import ENOUGH, lockstep
from tests.analysis.windows import MS, recorded, thin
from tests.timeline.build import run
from traincope.analysis import Analysis, Basis, Diff, Judgement, TermChange, analyze, diff
from traincope.events import Phase
from traincope.timeline import build_timeline

US = 1_000
STEP_NS = 100_000


def run_of(
    seed: int,
    *,
    steps: int = ENOUGH,
    data_ns: int = 0,
    slow_rank_ns: int = 0,
    ranks: int = 2,
    mesh: dict[str, int] | None = None,
    **settings: object,
) -> Analysis:
    """Steps of 100 us with 1 % of noise, common to all ranks. All ranks wait for data; rank 1 computes longer."""
    noise = np.random.default_rng(seed).normal(0, STEP_NS / 100, size=steps)
    work = [_work(int(STEP_NS + noise_ns + data_ns), slow_rank_ns, ranks) for noise_ns in noise]
    records = lockstep(work, transfer_ns=5 * US, of=Phase.FORWARD if slow_rank_ns else Phase.DATA_WAIT, all_ns=data_ns)
    recorded = run(*records, mesh=mesh or {"dp": ranks})
    info = replace(recorded.info, settings=dict(settings), id=f"run {seed}")
    return analyze(build_timeline(replace(recorded, info=info)))


def _work(ns: int, more_ns: int, ranks: int) -> Sequence[int]:
    return [ns + (more_ns if rank == 1 else 0) for rank in range(ranks)]


def change_of(result: Diff, term: str) -> TermChange:
    return next(change for change in result.terms if change.term == term)


def test_only_the_injected_data_wait_is_found_with_its_size() -> None:
    result = diff(run_of(1), run_of(2, data_ns=20 * US))
    assert result.judgement is Judgement.SLOWER
    assert [change.term for change in result.movers] == ["data_wait"]
    assert change_of(result, "data_wait").change == pytest.approx(20 * US)
    assert change_of(result, "data_wait").path_change == pytest.approx(20 * US)
    assert result.step.change == pytest.approx(20 * US, abs=STEP_NS / 100)
    assert result.interval is not None
    assert result.interval[0] < 20 * US < result.interval[1]


def test_the_reverse_comparison_is_faster() -> None:
    result = diff(run_of(1, data_ns=20 * US), run_of(2))
    assert result.judgement is Judgement.FASTER
    assert result.change_ratio == pytest.approx(-20 / 125, abs=0.01)


def test_a_slow_rank_is_half_work_half_wait_in_the_mean_and_all_work_on_the_path() -> None:
    """40 more on rank 1 of 2, for which rank 0 waits."""
    result = diff(run_of(1), run_of(2, slow_rank_ns=40 * US))
    assert result.judgement is Judgement.SLOWER
    assert {change.term for change in result.movers} == {"forward", "exposed_wait[dp]"}
    forward, wait = change_of(result, "forward"), change_of(result, "exposed_wait[dp]")
    assert (forward.rank, wait.rank) == (1, 0)
    assert forward.rank_change == pytest.approx(40 * US, abs=STEP_NS / 100)
    assert forward.change == pytest.approx(20 * US, abs=STEP_NS / 100)
    assert wait.change == pytest.approx(20 * US)
    assert forward.path_change == pytest.approx(40 * US, abs=STEP_NS / 100)
    assert wait.path_change == 0
    assert [finding.kind.value for finding in result.new_findings] == ["straggler"]


def test_equal_runs_are_not_called_slower() -> None:
    """At a level of 1 %, more than 2 of 10 occur in one trial of 10,000."""
    result = [diff(run_of(300 + seed), run_of(400 + seed)) for seed in range(10)]
    assert sum(bool(each.movers) or each.judgement is Judgement.SMALL for each in result) <= 2
    assert not any(each.judgement in (Judgement.SLOWER, Judgement.FASTER) for each in result)


def test_a_change_below_the_requested_share_is_small() -> None:
    first, second = run_of(1), run_of(2, data_ns=10 * US)
    assert diff(first, second, threshold_ratio=0.2).judgement is Judgement.SMALL
    assert diff(first, second, threshold_ratio=0.05).judgement is Judgement.SLOWER


def test_too_few_steps_are_not_tested() -> None:
    """The first of 12 warms up. A test needs 50."""
    result = diff(run_of(1, steps=12), run_of(2, steps=12, data_ns=50 * US))
    assert result.judgement is Judgement.NOT_TESTED
    assert (result.step.p, result.step.steps_needed, result.interval) == (None, 50, None)
    assert result.movers == ()
    assert change_of(result, "data_wait").change == pytest.approx(50 * US)
    assert change_of(result, "data_wait").steps_needed == 50


def test_different_numbers_of_ranks_are_compared_by_time_per_token() -> None:
    """2 ranks take 105 us for 1,000 tokens, 4 take 105 us for 2,000: 0.21 us of a rank each."""
    result = diff(run_of(1, tokens_per_step=1_000), run_of(2, ranks=4, tokens_per_step=2_000))
    assert (result.basis, result.reason) == (Basis.TOKEN, "the tokens per step differ")
    assert result.step.before == pytest.approx(210, rel=0.01)
    assert result.step.after == pytest.approx(210, rel=0.01)
    assert result.judgement is Judgement.NO_EVIDENCE
    wasted = diff(run_of(1, tokens_per_step=1_000), run_of(2, ranks=4, tokens_per_step=1_000))
    assert (wasted.basis, wasted.reason) == (Basis.TOKEN, "the numbers of ranks differ")
    assert wasted.judgement is Judgement.SLOWER
    assert wasted.change_ratio == pytest.approx(1.0, abs=0.02)


def test_different_layouts_without_tokens_are_compared_by_shares() -> None:
    result = diff(run_of(1), run_of(2, ranks=4, data_ns=25 * US))
    assert (result.basis, result.judgement) == (Basis.SHARE, Judgement.OTHER_WORK)
    assert result.reason is not None
    assert result.step.change == 0
    assert change_of(result, "data_wait").change == pytest.approx(25 / 130, rel=0.01)
    assert change_of(result, "data_wait").evident


def test_settings_that_differ_are_listed_by_family_with_both_values() -> None:
    first = run_of(1, batch=32, optimizer={"lr": 0.1, "name": "adam"})
    second = run_of(2, batch=64, optimizer={"lr": 0.2, "name": "adam"}, workers=7)
    differences = [
        (noise_ns.family, noise_ns.name, noise_ns.before, noise_ns.after) for noise_ns in diff(first, second).settings
    ]
    assert differences == [
        ("settings", "batch", "32", "64"),
        ("settings", "optimizer.lr", "0.1", "0.2"),
        ("settings", "workers", None, "7"),
    ]


def test_a_run_equals_itself() -> None:
    alone = run_of(1)
    result = diff(alone, alone)
    assert result.judgement is Judgement.NO_EVIDENCE
    assert {change.change for change in result.terms} == {0.0}
    assert (result.settings, result.new_findings) == ((), ())


def windowed(seed: int, *, longer_ns: int = 0) -> tuple[Analysis, Analysis]:
    """A run that is recorded in full, and as it would be in windows. Batches load `longer_ns` longer."""
    full = recorded(seed=seed, data_ns=MS + longer_ns, growth=1.0)
    return analyze(full), analyze(thin(full, run_id=f"run {seed}", halvings=1))


def test_the_lengths_of_all_steps_are_compared_and_the_terms_of_counted_ones() -> None:
    """Windows show one step in four. The step is that of the fully recorded runs."""
    (full_before, before), (full_after, after) = windowed(1), windowed(2, longer_ns=5 * MS)
    full, sampled = diff(full_before, full_after), diff(before, after)
    assert (sampled.step.before, sampled.step.after) == (full.step.before, full.step.after)
    assert (sampled.interval, sampled.judgement) == (full.interval, Judgement.SLOWER)
    assert (sampled.step.steps, full.sampled_steps) == (full.num_steps, None)
    assert change_of(sampled, "data_wait").change == pytest.approx(5 * MS)
    assert change_of(sampled, "data_wait").evident
    numbers = tuple(run.ledger.rank_steps // 2 for run in (before, after))
    assert change_of(sampled, "data_wait").steps == sampled.sampled_steps == numbers
    assert diff(full_before, after).sampled_steps == (full_before.ledger.rank_steps // 2, numbers[1])


@pytest.mark.slow
def test_equal_runs_in_windows_differ_no_more_often_than_the_level() -> None:
    """At a level of 1 % for the step and for any term, more than 2 of 10 pairs occur in one trial of 1,000."""
    runs = [windowed(seed)[1] for seed in range(20)]
    results = [diff(before, after) for before, after in zip(runs[::2], runs[1::2], strict=True)]
    assert sum(bool(result.movers) for result in results) <= 2
    assert sum(result.judgement is Judgement.SLOWER for result in results) <= 2


def test_few_steps_in_windows_are_not_tested() -> None:
    """50 steps with detail are needed."""
    few = [analyze(thin(recorded(seed=seed, growth=1.0), run_id="run 1", halvings=4)) for seed in (1, 2)]
    result = diff(*few)
    assert result.step.p is not None
    forward = change_of(result, "forward")
    assert forward.steps[0] < 50
    assert (forward.p, forward.steps_needed) == (None, 50)
