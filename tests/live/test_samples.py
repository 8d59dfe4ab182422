"""Every number of a training whose steps are known on paper (`windows.py`)."""

from dataclasses import replace

import pytest

from tests.live.told import HOST, told
from tests.live.windows import BYTES, MS, quiet, ranks, records, scalar, statuses, window
from tests.timeline.build import Row as Record
from tests.timeline.build import action, collective
from traincope import metrics
from traincope.analysis import Fault, FaultKind
from traincope.events import Flag, Kind, Phase
from traincope.live.samples import Moment
from traincope.live.state import advance, begin
from traincope.live.window import RankState
from traincope.metrics import Distribution
from traincope.store.rows import Row


def test_the_ledger_sums_to_the_wall_time_without_the_step_that_warms_up() -> None:
    """Two of three steps count: 200 ms."""
    found = told(begin(window(records(ranks(0, 1, 2)))))
    assert found[metrics.STEPS, 0] == 3
    assert found[metrics.WALL, 0] == 0.2
    assert {labels[1:]: value for labels, value in found.of(metrics.LEDGER).items() if labels[0] == "0"} == {
        ("forward", ""): 0.08,
        ("backward", ""): 0.06,
        ("exposed_wait", "fsdp"): 0.04,
        ("exposed_transfer", "fsdp"): 0.02,
    }
    assert {labels[1:]: value for labels, value in found.of(metrics.LEDGER).items() if labels[0] == "1"} == {
        ("forward", ""): 0.12,
        ("backward", ""): 0.06,
        ("exposed_transfer", "fsdp"): 0.02,
    }


def test_a_second_window_adds_to_the_first() -> None:
    """Step 0 in the first, steps 1 and 2 in the second, as if they had come together."""
    whole, first, rest = (window(records(ranks(*steps))) for steps in ((0, 1, 2), (0, 1), (2,)))
    rest = replace(rest, analysis=replace(rest.analysis, ledger=replace(rest.analysis.ledger, excluded_steps=())))
    apart, together = told(advance(begin(first), rest)), told(begin(whole))
    for metric in (metrics.STEPS, metrics.WALL, metrics.LEDGER, metrics.OWN_TIME, metrics.COLLECTIVE_BYTES):
        assert apart.of(metric) == pytest.approx(together.of(metric)), metric.name
    for metric in (metrics.STEP_TIMES, metrics.COLLECTIVE_TIMES):
        assert all(
            apart.samples[key].value == together.samples[key].value for key in apart.samples if key[0] == metric.name
        )


def test_what_an_agent_before_this_one_wrote_is_counted_once() -> None:
    first, second = window(records(ranks(0, 1))), window(records(ranks(2)))
    restored, went_on = told(begin(second, restored=first.rows)), told(advance(begin(first), second))
    for metric in (metrics.STEPS, metrics.WALL, metrics.LEDGER, metrics.OWN_TIME, metrics.LAST_STEP):
        assert restored.of(metric) == went_on.of(metric) != {}, metric.name
    assert restored.sample(metrics.STEP_TIMES).value == went_on.sample(metrics.STEP_TIMES).value


def test_the_parts_of_the_bubble_are_one_term_that_never_falls() -> None:
    """23 ms, then a step whose bubble is -5 ms, then one of 8: it stays at 23 and goes on to 26. What is below 0 from
    the first on has had no time.
    """
    first = window(records(ranks(0, 1)))
    state = begin(replace(first, rows=(_row(1, {"bubble.schedule": 20 * MS, "bubble.imbalance": 3 * MS}),)))
    assert told(state)[metrics.LEDGER, 0, "bubble", ""] == 0.023
    state = advance(state, quiet(first, rows=(_row(2, {"bubble.schedule": 2 * MS, "bubble.jitter": -7 * MS}),)))
    assert told(state)[metrics.LEDGER, 0, "bubble", ""] == 0.023
    state = advance(state, quiet(first, rows=(_row(3, {"bubble.jitter": 8 * MS}),)))
    assert told(state)[metrics.LEDGER, 0, "bubble", ""] == 0.026
    below = begin(replace(first, rows=(_row(1, {"forward": MS, "bubble.jitter": -7 * MS}),)))
    assert told(below).of(metrics.LEDGER) == {("0", "forward", ""): 0.001}


def _row(step: int, terms: dict[str, int], *, rank: int = 0) -> Row:
    wall_ns = sum(terms.values())
    return Row(rank=rank, step=step, start_ns=step * 100 * MS, wall_ns=wall_ns, own_ns=0, anomalous=False, terms=terms)


def test_the_rank_that_came_last_is_told_what_it_cost_the_others() -> None:
    found = told(begin(window(records(ranks(0, 1, 2)))))
    assert found.of(metrics.CAUSED_WAIT) == {("0",): 0, ("1",): 0.04}


def test_collectives_are_told_by_axis_and_operation_over_the_node() -> None:
    """Four calls count: 30 and 10 ms in each of two steps, 10 of which on the wire. Bus factor of two ranks: 1/2."""
    found = told(begin(window(records(ranks(0, 1, 2)))))
    labels = ("fsdp", "all_gather")
    assert found[metrics.COLLECTIVE_BYTES, *labels] == 4 * BYTES
    assert found[metrics.COLLECTIVE_TRANSFER, *labels] == 0.04
    assert found[metrics.COLLECTIVE_WAIT, *labels] == 0.04
    assert found[metrics.BUS_BANDWIDTH, *labels] == pytest.approx(BYTES / 2 / 0.01)
    counted = found.sample((metrics.COLLECTIVE_TIMES, *labels)).value
    assert isinstance(counted, Distribution)
    assert (counted.counts, counted.sum) == ((0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0), 0.08)


def test_a_collective_whose_end_was_not_seen_has_no_time_that_could_be_counted() -> None:
    """One was over before anybody looked, one raised; their bytes were sent all the same, where they were."""
    unseen = [
        collective(110 * MS, 130 * MS, name="all_reduce", sequence=at, at=1, num_bytes=10, flags=flag)
        for at, flag in enumerate((Flag.DONE_BEFORE_WAIT, Flag.RAISED))
    ]
    found = told(begin(window(records(ranks(0, 1, more=unseen)))))
    assert found[metrics.COLLECTIVE_BYTES, "fsdp", "all_reduce"] == 10
    assert {key[2] for key in found.samples if key[0] == metrics.COLLECTIVE_TIMES.name} == {"all_gather"}


def test_step_times_carry_an_example_a_bucket_with_step_and_rank() -> None:
    sample = told(begin(window(records(ranks(0, 1, 2))))).sample(metrics.STEP_TIMES)
    assert sample.value == Distribution(counts=(0, 4, *[0] * 11), sum=0.4)
    (example,) = sample.exemplars
    assert (example.value, example.labels, example.wall_ns) == (0.1, {"step": "2", "rank": "1"}, 300 * MS)


def test_ratios_are_of_the_latest_steps() -> None:
    """64 tokens a step of the job, of three steps."""
    found = told(begin(window(records(ranks(0, 1, 2)))))
    assert found[metrics.MFU] == pytest.approx(0.1)
    assert found.of(metrics.HFU) == {}, "nothing was counted"
    assert found[metrics.TOKENS] == 3 * 64
    assert found.of(metrics.LAST_STEP) == {("0",): 2, ("1",): 2}
    assert found.of(metrics.STEP_DURATION) == {("0",): 0.1, ("1",): 0.1}
    assert found.of(metrics.MEMORY) == {("0", "resident"): 1002, ("1", "resident"): 2002}
    assert found[metrics.OWN_TIME] == 6 * MS / 1e9


def test_of_tokens_a_node_counts_its_own_ranks() -> None:
    """Two of eight ranks, as their share of what was told; or what they logged, warming up or not."""
    assert told(begin(window(records(ranks(0, 1, 2), world_size=8))))[metrics.TOKENS] == 3 * 64 * 2 / 8
    logged = [scalar("step_tokens", 5.0, at * 100 * MS, at=at) for at in (0, 1, 2)]
    assert told(begin(window(records(ranks(0, 1, 2, more=logged), world_size=8))))[metrics.TOKENS] == 15


def test_a_value_that_is_logged_is_that_of_the_lowest_rank_until_it_logs_anew() -> None:
    first = window(records(ranks(0, 1, 2)))
    state = begin(first)
    assert told(state).of(metrics.LOGGED) == {("loss",): 1.0}
    assert told(advance(state, quiet(first))).of(metrics.LOGGED) == {("loss",): 1.0}


def test_of_many_logged_names_the_first_are_told_and_no_list_of_experts() -> None:
    many = [scalar(f"metric {number:02}", 1.0, 0, at=0) for number in range(40)]
    lists = [scalar(f"expert_tokens[0.{number}]", 1.0, 0, at=0) for number in range(40)]
    found = told(begin(window(records(ranks(0, 1, more=[*lists, *many]))))).of(metrics.LOGGED)
    assert len(found) == 16
    assert not any("[" in name for (name,) in found)


def test_faults_are_counted_by_rank_and_kind_and_marks_are_none() -> None:
    first = window(records(ranks(0, 1)))
    both = Fault(kind=FaultKind.NOT_FINITE, at_ns=1, ranks=(0, 1), what="loss is NaN")
    job = Fault(kind=FaultKind.RESTART, at_ns=2, what="attempt 1")
    mark = Fault(kind=FaultKind.EVALUATION, at_ns=3, ranks=(0,), what="evaluation", lasted_ns=1)
    state = begin(replace(first, faults=(both, job, mark)))
    expected = {("0", "not_finite"): 1, ("1", "not_finite"): 1, ("", "restart"): 1}
    assert told(state).of(metrics.FAULTS) == expected
    again = told(advance(state, quiet(first, faults=(replace(both, at_ns=9),)))).of(metrics.FAULTS)
    assert again == {("0", "not_finite"): 2, ("1", "not_finite"): 2, ("", "restart"): 1}


def test_a_rank_that_hangs_grows_old_and_one_that_ended_does_not() -> None:
    made = records(ranks(0, 1))
    alive, ended = statuses(made.ranks, last_ns=1_000 * MS)[0], statuses(made.ranks, state=RankState.ENDED)[1]
    state = begin(window(made, states=(alive, ended), at_ns=2_000 * MS))
    found = told(state, moment=Moment(monotonic_ns=5_000 * MS, wall_ns=0, cpu_ns=7 * MS))
    assert found.of(metrics.DATA_AGE) == {("0",): 4.0}
    assert found.of(metrics.RANKS) == {("alive",): 1, ("ended",): 1, ("gone",): 0}
    assert found[metrics.AGENT_LAG] == 3.0
    assert found[metrics.AGENT_TIME] == 0.007
    assert found[metrics.RECORDS] == 201
    assert found[metrics.DROPPED] == 4


def test_run_and_ranks_say_what_they_are() -> None:
    found = told(begin(window(records(ranks(0, 1)))))
    assert found.sample((metrics.RUN_INFO, "2", "fsdp=2", "0", "2.13.0", "1")).labels[:2] == ("job-7", HOST)
    assert found[metrics.RANK_INFO, 1, "fsdp=1", "a device"] == 1


def test_a_module_has_the_time_of_its_forward_and_a_stage_that_of_its_actions() -> None:
    level_2 = [
        Record(
            kind=Kind.SPAN, start_ns=110 * MS, end_ns=125 * MS, name="layers.0 (Block)", phase=Phase.FORWARD, step=1
        ),
        Record(
            kind=Kind.SPAN, start_ns=170 * MS, end_ns=180 * MS, name="layers.0 (Block)", phase=Phase.BACKWARD, step=1
        ),
        action("F", 110 * MS, 112 * MS, stage=3, microbatch=0, at=1),
        action("F", 112 * MS, 115 * MS, stage=3, microbatch=1, at=1),
    ]
    found = told(begin(window(records(ranks(0, 1, more=level_2, level=2)))))
    assert found.of(metrics.MODULE_TIME) == {("0", "layers.0 (Block)"): 0.015}
    assert found.of(metrics.ACTION_TIME) == {("0", "3", "F"): 0.005}
    below = told(begin(window(records(ranks(0, 1, more=level_2)))))
    assert below.of(metrics.ACTION_TIME) == below.of(metrics.MODULE_TIME) == {}


def _block(phase: Phase, start_ns: int, end_ns: int) -> Record:
    return Record(kind=Kind.SPAN, start_ns=start_ns, end_ns=end_ns, name="layers.0 (Block)", phase=phase, step=1)


def test_names_of_a_run_become_labels_that_can_be_written() -> None:
    """Half a surrogate pair cannot be encoded, and a name may be a megabyte."""
    found = told(begin(window(records(ranks(0, 1, more=[scalar("\ud800" + "x" * 10**6, 1.0, 0, at=0)])))))
    (name,) = (name for (name,) in found.of(metrics.LOGGED) if name != "loss")
    assert name == "?" + "x" * 127
