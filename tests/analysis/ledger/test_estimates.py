"""Estimates over all steps from windows: which terms are exact, that they add up, and that their intervals hold."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.lockstep import lockstep
from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from tests.truth.windows.coverage import coverages
from tests.truth.windows.thinning import in_window, thin
from traincope import open_run
from traincope.analysis import Estimate, RunLedger, analyze
from traincope.analysis.ledger.estimates import (
    FEW_WINDOWS,
    NO_WINDOW,
    RARE,
    SMALL,
    SampledSteps,
    represented_by,
    run_ledger,
    student_quantile,
)
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Floats
from traincope.events import BLOCK_STEPS, Flag, Phase
from traincope.timeline import Step, Timeline

MS = 1_000_000
STEPS = 40 * BLOCK_STEPS
SAMPLE = Path(__file__).parents[3] / "sample_runs" / "demo"


def recorded(*, seed: int = 0, steps: int = STEPS, data_ns: int = MS, growth: float = 1.5) -> Timeline:
    """Two ranks in lockstep; every step has detail.

    A step waits `data_ns` for its batch. Its forward varies by rank. Its backward computes for 10 to 14 ms, and then
    waits for the other rank and 2 to 4 ms of transfer. After 60 % of the run, computation takes `growth` times as long.
    """
    random = np.random.default_rng(seed)
    rows: tuple[list[Row], list[Row]] = ([], [])
    now = 0
    for number in range(steps):
        longer = growth if number >= 0.6 * steps else 1.0
        forward = [
            int(longer * MS * random.lognormal(np.log(10), 0.2) * (3 if random.random() < 0.02 else 1)) for _ in rows
        ]
        backward = [int(longer * MS * random.uniform(10, 14)) for _ in rows]
        computed = [data_ns + ahead + back for ahead, back in zip(forward, backward, strict=True)]
        end = now + max(computed) + int(MS * random.uniform(2, 4))
        for at, own in enumerate(rows):
            loaded, ahead = now + data_ns, now + data_ns + forward[at]
            reduce = collective(now + computed[at], end, name="all_reduce", sequence=number, at=number, num_bytes=1_000)
            own += [
                step(number, now, end, flags=Flag.DETAILED),
                phase(Phase.DATA_WAIT, now, loaded, at=number),
                phase(Phase.FORWARD, loaded, ahead, at=number),
                phase(Phase.BACKWARD, ahead, end, at=number),
                reduce,
                stall(reduce, now + computed[at], end),
            ]
        now = end
    return timeline(*(rank(at, *own, groups=[group("dp", 0, 1)]) for at, own in enumerate(rows)))


def changed(recording: Timeline, change: Callable[[Step], Step]) -> Timeline:
    ranks = (replace(rank, steps=tuple(map(change, rank.steps))) for rank in recording.ranks)
    return replace(recording, ranks=tuple(ranks))


def run_of(recording: Timeline) -> RunLedger:
    run = analyze(recording).ledger.run
    assert run is not None
    return run


def test_a_run_in_which_every_step_has_detail_has_no_estimates() -> None:
    assert analyze(recorded(steps=20)).ledger.run is None


def test_what_every_step_records_is_exact_and_the_terms_add_up() -> None:
    full = recorded()
    ledger, run = analyze(full).ledger, run_of(thin(full, run_id="a", halvings=2))
    assert (run.steps, run.wall_ns, run.rank_steps) == (STEPS - 1, ledger.wall_ns, 2 * (STEPS - 1))
    for term in ("data_wait", "forward", "optimizer", "gc", "checkpoint_stall"):
        share = (ledger.total(term) or 0) / ledger.wall_ns
        assert run.terms[term] == ledger.total(term)
        assert run.estimates[term] == Estimate(estimate=share, low=share, high=share, steps=STEPS - 1)
    assert run.estimates["backward"].low != run.estimates["backward"].high
    assert sum(ns for ns in run.terms.values() if ns is not None) == run.wall_ns
    assert run.terms["compile"] is None
    assert "compile" not in run.estimates


def test_an_estimate_says_how_many_steps_it_stands_on() -> None:
    thinned = thin(recorded(), run_id="a", halvings=2)
    sampled = [number for number in range(1, STEPS) if thinned.ranks[0].steps[number].detailed]
    run = run_of(thinned)
    assert run.sampled_steps == run.estimates["exposed_wait[dp]"].steps == len(sampled)
    assert run.blocks == len({number // BLOCK_STEPS for number in sampled})


def test_intervals_contain_the_full_run_in_90_of_100_draws() -> None:
    rows = {row.term: row for row in coverages(recorded(), draws=100, halvings=2)}
    terms = "backward", "exposed_transfer[dp]", "exposed_wait[dp]", "exposed_communication[dp]"
    path = "path: forward", "path: backward", "path: exposed_transfer[dp]"
    operation = tuple(f"all_reduce on dp: {part}" for part in ("count", "bytes", "transfer", "wait", "exposed"))
    ranks = tuple(f"rank {number}: {part}" for number in (0, 1) for part in ("compute", "exposed"))
    for term in (*terms, *path, *operation, *ranks):
        assert rows[term].stated == 100
        assert rows[term].contained >= 90, rows[term]
        assert rows[term].mean_width < rows[term].truth_ratio
    assert all(row.holds for row in rows.values())


def test_a_part_that_follows_its_phase_is_known_without_error() -> None:
    """The transfer is 2 ms on both ranks, and the rest of each stall is wait: a line through the stall's length."""
    work = np.random.default_rng(0).integers(5 * MS, 20 * MS, size=(STEPS, 2))
    full = timeline(*lockstep(work.tolist(), transfer_ns=2 * MS))
    ledger, run = analyze(full).ledger, run_of(thin(full, run_id="b", halvings=2))
    for term in ("exposed_transfer[dp]", "exposed_wait[dp]"):
        share, estimate = ledger.share(term), run.estimates[term]
        assert (estimate.low, estimate.estimate, estimate.high) == pytest.approx((share, share, share), abs=1e-9)
        assert estimate.steps == run.sampled_steps < run.steps


def test_requested_steps_are_counted_but_enter_no_estimate() -> None:
    """The last steps of a light block have detail because of a request."""
    thinned = thin(recorded(), run_id="a", halvings=2)
    block = next(b for b in range(2, 40) if not any(in_window(8 * (b + n), run_id="a", halvings=2) for n in (-1, 0, 1)))
    asked = range(BLOCK_STEPS * block + 1, BLOCK_STEPS * (block + 1))

    def request(step: Step) -> Step:
        return replace(step, detailed=True, requested=True) if step.number in asked else step

    with_request = changed(thinned, request)
    assert set(with_request.requested_steps) == set(asked)
    assert run_of(with_request) == run_of(thinned)
    ledger = analyze(with_request).ledger
    assert not set(asked) & set(ledger.ranks[0].numbers[ledger.ranks[0].counted].tolist())
    assert not set(asked) & set(ledger.unwatched_steps)


def test_a_few_windows_have_an_estimate_without_an_interval() -> None:
    run = run_of(thin(recorded(steps=8 * BLOCK_STEPS), run_id="a", halvings=2))
    assert run.estimates["exposed_wait[dp]"].estimate > 0
    assert {run.estimates[term].reason for term in ("backward", "exposed_wait[dp]")} == {FEW_WINDOWS}
    assert run.estimates["forward"].reason is None


def test_windows_that_end_early_give_no_interval_for_the_rest() -> None:
    """Level 0 from step 120 of 320 on: the last window stands for 200 steps that may be different."""

    def lower(step: Step) -> Step:
        return step if step.number < 120 else replace(step, detailed=False)

    assert run_of(changed(recorded(), lower)).estimates["exposed_wait[dp]"].reason == NO_WINDOW


def with_wait(share: Floats) -> RunLedger:
    """A run of backwards, of which these shares are wait, one per step."""
    length = np.random.default_rng(0).uniform(10 * MS, 20 * MS, size=STEPS).round()
    sampled = np.array([in_window(number, run_id="a", halvings=2) for number in range(STEPS)])
    by_phase = {("backward", "exposed_wait[dp]"): (share * length).round()}
    by_phase["backward", "backward"] = length - by_phase["backward", "exposed_wait[dp]"]
    steps = SampledSteps(numbers=np.arange(STEPS), wall_ns=int(length.sum()), sampled=sampled, by_phase=by_phase)
    return run_ledger(steps, order=("backward", "exposed_wait[dp]"), unseen=set(), sums={}, rank_steps=STEPS)


def test_each_rank_has_an_estimate_of_its_own() -> None:
    """Two windows of seven steps in 112. Rank 0 waits 5 % of the first one and 90 % later, rank 1 50 % and nothing."""
    numbers = np.arange(16 * BLOCK_STEPS)
    counted = np.isin(numbers // BLOCK_STEPS, (0, 9))
    wall = np.full(len(numbers), 100 * MS)
    ranks = []
    for at, (first, later) in enumerate(((0.05, 0.9), (0.5, 0.0))):
        wait = np.where(numbers < BLOCK_STEPS, first, later) * wall * counted
        ranks.append(
            RankLedger(
                rank=at,
                numbers=numbers,
                wall_ns=wall,
                terms={"launch_gap": wait.astype(np.int64), "forward": (wall - wait).astype(np.int64)},
                ambiguous_waits={},
                counted=counted,
                light=~counted,
                by_phase={("forward", "forward"): wall - wait, ("forward", "launch_gap"): wait},
                every_step=(),
                evaluation_ns=0,
                recorded_ns=int(wall.sum()),
            )
        )
    ledger = Ledger(ranks=tuple(ranks), order=("forward", "launch_gap"), excluded_steps=())
    assert ledger.share_on(ranks[:1], "launch_gap") == pytest.approx((0.05 + 15 * 0.9) / 16)
    assert ledger.share_on(ranks[1:], "launch_gap") == pytest.approx(0.5 / 16)


def test_a_time_is_never_negative() -> None:
    """Of two windows, the one with longer steps has less wait. By regression, the longest would have a negative one."""
    sampled = np.isin(np.arange(40) // BLOCK_STEPS, (0, 1))
    length = np.where(np.arange(40) < BLOCK_STEPS, 10.0, np.where(sampled, 11.0, 30.0)) * MS
    wait = np.where(np.arange(40) < BLOCK_STEPS, 1.0, 0.5) * MS * sampled
    by_phase = {("backward", "backward"): length - wait, ("backward", "wait"): wait}
    steps = SampledSteps(numbers=np.arange(40), wall_ns=int(length.sum()), sampled=sampled, by_phase=by_phase)
    run = run_ledger(steps, order=("backward", "wait"), unseen=set(), sums={}, rank_steps=40)
    assert run.terms == {"backward": run.wall_ns, "wait": 0}
    assert run.estimates["wait"].estimate == 0


def test_a_tiny_term_has_no_interval() -> None:
    run = with_wait(np.full(STEPS, 0.004))
    assert run.estimates["exposed_wait[dp]"].estimate == pytest.approx(0.004, abs=1e-4)
    assert [run.estimates[term].reason for term in run.terms] == [None, SMALL]


def test_a_term_of_few_steps_has_no_interval() -> None:
    """Every 20th step waits for 40 % of its backward: which windows show one is chance."""
    run = with_wait(np.where(np.arange(STEPS) % 20 == 0, 0.4, 0.0))
    assert [run.estimates[term].reason for term in run.terms] == [None, RARE]


def test_an_interval_that_reaches_below_the_smallest_share_contains_all_below() -> None:
    """Shares below 0.5 % are not stated, so an estimate just above may be of any of them."""
    estimate = with_wait(np.random.default_rng(1).exponential(0.0054, size=STEPS)).estimates["exposed_wait[dp]"]
    assert estimate.low == 0.0
    assert estimate.high is not None
    assert 0.005 < estimate.estimate < estimate.high < 0.01


def test_a_sample_run_has_the_same_terms_when_it_is_thinned() -> None:
    full = open_run(SAMPLE)
    ledger, run = analyze(full).ledger, run_of(thin(full, run_id="a", halvings=1))
    assert list(run.terms) == list(ledger.order)
    assert sum(ns for ns in run.terms.values() if ns is not None) == run.wall_ns == ledger.wall_ns
    for term in ("data_wait", "gc", "checkpoint_stall"):
        assert run.terms[term] == ledger.total(term)


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([0, 2, 5], [0, 2, 2, 2, 5, 5, 5, 5]),  # strata of 4 blocks; block 0 stands for itself
        ([0, 1, 2, 7], [0, 1, 2, 2, 7, 7, 7, 7]),  # every block, then strata of 4: nothing was drawn for block 3
        ([0], [0] * 8),
    ],
)
def test_a_window_stands_for_its_stratum(windows: list[int], expected: list[int]) -> None:
    assert represented_by(np.array(windows), np.arange(8)).tolist() == expected


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (6, 2.447), (10, 2.228), (30, 2.042), (120, 1.980)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=0.004)
