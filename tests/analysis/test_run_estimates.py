"""Communication and the bubble over all steps, from windows."""

from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.ledger.test_estimates import STEPS, recorded
from tests.analysis.pipeline.orders import one_forward_one_backward
from tests.analysis.pipeline.pipelines import Pipeline
from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from tests.truth.windows.coverage import coverages
from tests.truth.windows.thinning import thin
from traincope.analysis import RunEstimates, analyze
from traincope.analysis.ledger.estimates import RARE
from traincope.analysis.run_estimates import HIDDEN
from traincope.events import BLOCK_STEPS, Flag, Kind, Phase
from traincope.plan.pipeline.actions import Action
from traincope.timeline import Timeline

MS = 1_000_000
FORWARD_NS, BACKWARD_NS = 10 * MS, 20 * MS


def estimates(full: Timeline) -> RunEstimates:
    result = analyze(thin(full, run_id="a", halvings=2)).run_estimates
    assert result is not None
    return result


def pipelined(*, seed: int = 0, steps: int = 40 * BLOCK_STEPS) -> Timeline:
    """1F1B of 2 stages and 4 microbatches. Each action takes up to 5 ms longer than usual in some steps."""
    random, begin = np.random.default_rng(seed), 0
    orders = one_forward_one_backward(2, 4)
    durations = {(kind, stage): ns for kind, ns in (("F", FORWARD_NS), ("B", BACKWARD_NS)) for stage in (0, 1)}
    rows: dict[int, list[Row]] = {0: [], 1: []}
    for number in range(steps):
        late: dict[Action, int] = {
            action: int(random.integers(5 * MS))
            for order in orders.values()
            for action in order
            if random.random() < 0.3
        }
        pipeline = Pipeline(orders=orders, durations=durations, transfer_ns=MS, late=late)
        end = begin + pipeline.end()
        for at, of in rows.items():
            of.append(step(number, begin, end, flags=Flag.DETAILED))
            for row in pipeline.rows(at):
                sequence = row.sequence + (0 if row.kind == Kind.ACTION else 10_000 * number)
                times = {"start_ns": row.start_ns + begin, "end_ns": row.end_ns + begin}
                of.append(replace(row, **times, step=number, sequence=sequence))
        begin = end
    return timeline(*(rank(at, *of, groups=pipeline.groups(), coords={"pp": at}) for at, of in rows.items()))


def with_calls(counts: list[int]) -> Timeline:
    """One rank computes for 10 ms per step, and then calls this number of all-reduces of 1 ms and 1,000 bytes."""
    rows: list[Row] = []
    begin = 0
    for number, count in enumerate(counts):
        end = begin + (10 + count) * MS
        rows += [step(number, begin, end, flags=Flag.DETAILED), phase(Phase.BACKWARD, begin, end, at=number)]
        for call in range(count):
            start = end - (count - call) * MS
            sequence = 1_000 * number + call
            reduce = collective(start, start + MS, name="all_reduce", sequence=sequence, at=number, num_bytes=1_000)
            rows += [reduce, stall(reduce, start, start + MS)]
        begin = end
    return timeline(rank(0, *rows, groups=[group("dp", 0)]))


def test_a_run_in_which_every_step_has_detail_has_no_estimates() -> None:
    assert analyze(recorded(steps=20)).run_estimates is None


def test_exposed_time_of_the_operations_on_an_axis_is_the_ledgers() -> None:
    thinned = analyze(thin(recorded(), run_id="a", halvings=2))
    assert thinned.ledger.run is not None
    assert thinned.run_estimates is not None
    operation = thinned.run_estimates.operations["dp", "all_reduce"]
    exposed, wait = (
        thinned.ledger.run.sums["exposed_communication[dp]"],
        thinned.ledger.run.estimates["exposed_wait[dp]"],
    )
    assert (operation.exposed.estimate, operation.exposed.low, operation.exposed.high) == pytest.approx(
        (exposed.estimate, exposed.low, exposed.high)
    )
    assert (operation.wait.low, operation.wait.high) == pytest.approx((wait.low, wait.high))


def test_calls_and_bytes_that_follow_the_length_of_a_step_are_known_without_error() -> None:
    """A step with n calls takes 10 + n ms: the number of calls is a line through the length."""
    counts = np.random.default_rng(0).integers(1, 6, size=STEPS).tolist()
    mean = sum(counts[1:]) / (STEPS - 1)
    operation = estimates(with_calls(counts)).operations["dp", "all_reduce"]
    for estimate, unit in ((operation.count, 1), (operation.num_bytes, 1_000)):
        assert (estimate.low, estimate.estimate, estimate.high) == pytest.approx((unit * mean,) * 3)
        assert estimate.steps < STEPS / 2
    share = mean / (10 + mean)
    assert (operation.transfer.low, operation.transfer.high) == pytest.approx((share, share))
    assert (operation.exposed.low, operation.exposed.high) == pytest.approx((share, share))


def test_an_operation_of_few_steps_has_no_interval() -> None:
    operation = estimates(with_calls([int(number % 20 == 3) for number in range(STEPS)])).operations["dp", "all_reduce"]
    assert {operation.count.reason, operation.num_bytes.reason, operation.transfer.reason} == {RARE}
    assert operation.count.low is None


def test_transfers_that_nothing_waited_for_have_no_interval() -> None:
    """Each second collective ends before its ranks wait for it. Its time is the median of the others."""
    full, ranks = recorded(), []
    for of in full.ranks:
        main = of.main.copy()
        main["flags"][(main["kind"] == Kind.COLLECTIVE) & (main["step"] % 2 == 0)] = Flag.DONE_BEFORE_WAIT
        ranks.append(replace(of, threads={"main": main}))
    operation = estimates(replace(full, ranks=tuple(ranks))).operations["dp", "all_reduce"]
    assert operation.transfer.reason == HIDDEN
    assert operation.count.reason is None


def test_intervals_of_the_bubble_contain_the_full_run_in_90_of_100_draws() -> None:
    rows = {row.term: row for row in coverages(pipelined(), draws=100, halvings=2)}
    for of in ("pipeline", "stage 0", "stage 1"):
        for part in ("schedule", "jitter", "bubble"):
            assert rows[f"{of}: {part}"].stated == 100
            assert rows[f"{of}: {part}"].contained >= 90, rows[f"{of}: {part}"]
    assert all(row.holds for row in rows.values()), [row for row in rows.values() if not row.holds]


def test_the_bubble_of_all_stages_is_the_ledgers() -> None:
    thinned = analyze(thin(pipelined(), run_id="a", halvings=2))
    assert thinned.ledger.run is not None
    assert thinned.run_estimates is not None
    assert thinned.run_estimates.bubble["bubble"] == thinned.ledger.run.sums["bubble"]
    mean = np.mean([stage["bubble"].estimate for stage in thinned.run_estimates.stages.values()])
    assert mean == pytest.approx(thinned.run_estimates.bubble["bubble"].estimate, rel=1e-3)
