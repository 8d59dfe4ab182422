"""Work of one rank for which the others wait costs what the others lose, also if they wait in their next step."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, analyze
from traincope.analysis.stragglers.stops import Stops, stops
from traincope.events import BUSY_THREAD, Kind, Phase, Usage

WORK, SEND = 60, 10


def stopping(
    of: Phase,
    stop_ns: Mapping[tuple[int, int], int],
    *,
    steps: int = 41,
    num_ranks: int = 3,
    joined: bool = True,
    busy: Mapping[str, object] | None = None,
    core_wait_ns: int = 0,
) -> Analysis:
    """Analyse ranks that compute for WORK and reduce for SEND in each step, and then may stop.

    `stop_ns`: (step, rank) -> ns. A rank that does not stop begins its next step. `joined`: it waits there. `busy`:
    another thread of rank 0. `core_wait_ns`: its waits for a core in all steps.
    """
    begin, rows = [0] * num_ranks, [list[Row]() for _ in range(num_ranks)]
    for number in range(steps):
        joins = [each + WORK for each in begin]
        for at, join in enumerate(joins):
            done = (max(joins) if joined else join) + SEND
            end = done + stop_ns.get((number, at), 0)
            reduce = collective(join, done, name="all_reduce", sequence=number, at=number, num_bytes=1_000)
            rows[at] += [step(number, begin[at], end), phase(Phase.FORWARD, begin[at], join, at=number)]
            rows[at] += [reduce, stall(reduce, join, done)] if joined else []
            if end > done:
                stopped = phase(of, done, end, at=number)
                rows[at].append(replace(stopped, name="save checkpoint") if of is Phase.CHECKPOINT_STALL else stopped)
            begin[at] = end
    everyone = group("dp", *range(num_ranks))
    if busy is not None:
        rows[0].append(Row(kind=Kind.EVENT, start_ns=1, end_ns=1, name=BUSY_THREAD, group=1))
    for at_ns, value in (0, 0), (begin[0], core_wait_ns):
        rows[0].append(Row(kind=Kind.USAGE, start_ns=at_ns, end_ns=at_ns, name=Usage.CORE_WAIT, value=value))
    ranks = [rank(at, *own, groups=[everyone], coords={"dp": at}) for at, own in enumerate(rows)]
    ranks[0] = replace(ranks[0], details={} if busy is None else {1: busy})
    return analyze(timeline(*ranks))


def stops_of(analysis: Analysis, term: str) -> Stops:
    found = stops(analysis.timeline, analysis.ledger, term)
    assert found is not None
    return found


EVERY_TENTH = {(number, 0): 100 for number in (10, 20, 30, 40)}


def test_the_others_wait_in_their_next_step() -> None:
    """40 counted steps of 70. Rank 0 takes 400 more, the others 300 in steps 11, 21 and 31, and 100 after the end."""
    found = stops_of(stopping(Phase.CHECKPOINT_STALL, EVERY_TENTH), "checkpoint_stall")
    assert (found.steps, found.period_steps, found.num_steps, found.mean_ns) == ((10, 20, 30, 40), 10, 40, 100)
    assert found.own_ratio == pytest.approx(400 / (3_200 + 2 * 3_100))
    assert found.lost_ratio == pytest.approx(3 * 400 / (3_200 + 2 * 3_100))
    assert (found.followed, found.is_bound, found.own_ns) == (True, False, {0: 400, 1: 0, 2: 0})


def test_a_save_of_one_rank_is_one_finding_with_the_wait_of_the_others() -> None:
    """Without the saves the job takes 2,800 instead of 3,200."""
    (finding,) = (
        each for each in stopping(Phase.CHECKPOINT_STALL, EVERY_TENTH).verdict if each.kind != "exposed_transfer"
    )
    assert (finding.kind, finding.ranks, finding.steps) == ("checkpoint_stall", (0,), (10, 20, 30, 40))
    assert finding.confidence == "high"
    assert finding.estimated_gain_ratio == pytest.approx(400 / 3_200)
    assert finding.evidence == (
        "rank 0 saves checkpoints in 4 of 40 steps (every 10), 100 ns each, and the others wait: this takes 12.8 % "
        "of step time"
    )
    assert finding.advice.startswith("Save in the background")


def test_one_stop_that_is_much_longer_than_the_others_is_named_with_its_step() -> None:
    """The mean of 500 and three times 20 would be no length of any of them."""
    lengths = {(10, 0): 20, (20, 0): 500, (30, 0): 20, (40, 0): 20}
    (finding,) = (each for each in stopping(Phase.CHECKPOINT_STALL, lengths).verdict if each.kind == "checkpoint_stall")
    assert "in 4 of 40 steps (every 10), 500 ns in step 20, else 20 ns on average, and the others" in finding.evidence


def test_work_of_one_rank_that_no_probe_covers_is_found_if_it_is_long() -> None:
    """Such as logging, of 100 in steps of 70. Waits of 30 for a core are no such work."""
    findings = stopping(Phase.NONE, EVERY_TENTH).verdict
    finding = next(each for each in findings if each.kind == "straggler")
    assert (finding.ranks, finding.steps, finding.confidence) == ((0,), (10, 20, 30, 40), "high")
    assert finding.estimated_gain_ratio == pytest.approx(3 * 400 / (3_200 + 2 * 3_100))
    assert finding.evidence.startswith("rank 0 does work that no probe covers in 4 of 40 steps (every 10), 100 ns each")
    assert not [each for each in findings if each.kind in ("exposed_wait", "unattributed")]
    short = {(number, at): 30 for number in range(0, 41, 4) for at in (0,)}
    assert not [each for each in stopping(Phase.NONE, short).verdict if each.kind == "straggler"]


@pytest.mark.parametrize(
    ("core_wait_ns", "at", "named"),
    [(150, (10, 17, 29, 40), True), (250, (10, 17, 29, 40), False), (250, (10, 20, 30, 40), True)],
)
def test_stops_that_may_be_waits_for_a_core_name_no_rank(core_wait_ns: int, at: tuple[int, ...], named: bool) -> None:
    """They take 400 in all. A full host does not come in equal intervals."""
    found = stopping(Phase.NONE, {(number, 0): 100 for number in at}, core_wait_ns=core_wait_ns)
    assert any(each.kind == "straggler" for each in found.verdict) is named


def test_a_thread_that_computes_beside_work_that_no_probe_covers_is_named() -> None:
    busy = {"thread": "saver", "runs": "Saver.merge", "busy_ns": 7, "of_ns": 10}
    finding = next(each for each in stopping(Phase.NONE, EVERY_TENTH, busy=busy).verdict if each.kind == "straggler")
    assert finding.evidence.endswith(
        "; its thread saver (Saver.merge) runs or waits for a core 70.0 % of the time, and may hold the GIL then"
    )
    assert "Do the work of that thread in another process" in finding.advice
    idle = next(
        each
        for each in stopping(Phase.NONE, EVERY_TENTH, busy={**busy, "busy_ns": 4}).verdict
        if each.kind == "straggler"
    )
    assert "thread" not in idle.evidence


def test_evaluation_of_one_rank_costs_what_the_others_wait() -> None:
    analysis = stopping(Phase.EVALUATION, EVERY_TENTH)
    finding = next(each for each in analysis.verdict if each.kind == "evaluation")
    assert (finding.ranks, finding.confidence) == ((0,), "high")
    assert finding.estimated_gain_ratio == pytest.approx(2 * 400 / (3_200 + 2 * 3_100))
    assert not [each for each in analysis.verdict if each.kind == "exposed_wait"]


def test_evaluation_of_all_ranks_together_delays_none() -> None:
    together = {(number, at): 40 for number in (10, 20, 30, 40) for at in range(3)}
    assert not [each for each in stopping(Phase.EVALUATION, together).verdict if each.ranks]


def test_collections_that_meet_on_all_ranks_cost_one_of_them() -> None:
    together = stops_of(stopping(Phase.GC, {(n, at): 100 for n in (10, 20, 30) for at in range(3)}), "gc")
    assert together.lost_ratio == pytest.approx(3 * 300 / (3 * 3_100))
    assert together.waited_ratio == 0
    apart = stops_of(stopping(Phase.GC, {(10 * at + 10, at): 100 for at in range(3)}), "gc")
    assert apart.lost_ratio == pytest.approx(3 * 300 / (3 * 3_100))
    assert apart.waited_ratio == pytest.approx(2 * 300 / (3 * 3_100))


def test_ranks_that_do_not_wait_lose_nothing() -> None:
    found = stops_of(stopping(Phase.GC, EVERY_TENTH, joined=False), "gc")
    assert (found.followed, found.waited_ratio) == (False, 0)


def test_stops_in_most_steps_have_an_upper_bound() -> None:
    found = stops_of(stopping(Phase.GC, {(number, number % 3): 100 for number in range(41)}), "gc")
    assert found.is_bound
    assert found.lost_ratio >= 3 * found.own_ratio - 1e-9


def test_a_slow_step_names_the_stop_that_made_it() -> None:
    """Steps of 170 instead of 70: those of rank 0's stop, and those after them on the other ranks."""
    slow = [fault for fault in stopping(Phase.GC, EVERY_TENTH).faults if fault.kind == "slow_step"]
    assert [fault.step for fault in slow] == [10, 11, 20, 21, 30, 31, 40]
    assert {fault.ranks for fault in slow} == {(0,)}
    assert slow[1].evidence.endswith("gc of rank 0 grew from 0.0 to 0.0 ms in step 10, and the others wait for it")
    evaluated = [fault for fault in stopping(Phase.EVALUATION, EVERY_TENTH).faults if fault.kind == "slow_step"]
    assert [(fault.step, fault.ranks) for fault in evaluated] == [(11, (0,)), (21, (0,)), (31, (0,))]
    assert not [fault for fault in stopping(Phase.CHECKPOINT_STALL, EVERY_TENTH).faults if fault.kind == "slow_step"]
