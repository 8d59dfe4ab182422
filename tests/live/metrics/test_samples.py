"""Every metric of a training whose steps are computed by hand (`windows.py`)."""

from dataclasses import replace

import pytest

from tests.live.sample_table import HOST, sample_table
from tests.live.windows import BYTES, MS, quiet, ranks, records, scalar, statuses, window
from tests.timeline.build import Row as Record
from tests.timeline.build import action, collective
from traincope.analysis import Fault, FaultKind
from traincope.events import Flag, Kind, Phase
from traincope.live.metrics.samples import Moment
from traincope.live.metrics.state import advance, begin
from traincope.live.window import RankState
from traincope.metrics import catalogue
from traincope.metrics.sample import Distribution
from traincope.store.side_tables.rows import Row


def test_the_ledger_sums_to_the_wall_time_without_the_warm_up_step() -> None:
    """Two of three steps count: 200 ms."""
    table = sample_table(begin(window(records(ranks(0, 1, 2)))))
    assert table[catalogue.STEPS, 0] == 3
    assert table[catalogue.WALL, 0] == 0.2
    assert {labels[1:]: value for labels, value in table.of(catalogue.LEDGER).items() if labels[0] == "0"} == {
        ("forward", ""): 0.08,
        ("backward", ""): 0.06,
        ("exposed_wait", "fsdp"): 0.04,
        ("exposed_transfer", "fsdp"): 0.02,
    }
    assert {labels[1:]: value for labels, value in table.of(catalogue.LEDGER).items() if labels[0] == "1"} == {
        ("forward", ""): 0.12,
        ("backward", ""): 0.06,
        ("exposed_transfer", "fsdp"): 0.02,
    }


def test_a_second_window_adds_to_the_first() -> None:
    """Step 0 in the first window and steps 1 and 2 in the second equal one window of all."""
    whole, first, rest = (window(records(ranks(*steps))) for steps in ((0, 1, 2), (0, 1), (2,)))
    rest = replace(rest, analysis=replace(rest.analysis, ledger=replace(rest.analysis.ledger, excluded_steps=())))
    apart, together = sample_table(advance(begin(first), rest)), sample_table(begin(whole))
    for metric in (catalogue.STEPS, catalogue.WALL, catalogue.LEDGER, catalogue.OWN_TIME, catalogue.COLLECTIVE_BYTES):
        assert apart.of(metric) == pytest.approx(together.of(metric)), metric.name
    for metric in (catalogue.STEP_TIMES, catalogue.COLLECTIVE_TIMES):
        assert all(
            apart.samples[key].value == together.samples[key].value for key in apart.samples if key[0] == metric.name
        )


def test_rows_of_an_earlier_agent_are_counted_once() -> None:
    first, second = window(records(ranks(0, 1))), window(records(ranks(2)))
    restored, went_on = sample_table(begin(second, restored=first.rows)), sample_table(advance(begin(first), second))
    for metric in (catalogue.STEPS, catalogue.WALL, catalogue.LEDGER, catalogue.OWN_TIME, catalogue.LAST_STEP):
        assert restored.of(metric) == went_on.of(metric) != {}, metric.name
    assert restored.sample(catalogue.STEP_TIMES).value == went_on.sample(catalogue.STEP_TIMES).value


def test_the_bubble_is_one_term_that_never_falls() -> None:
    """Bubbles of 23 ms, -5 ms and 8 ms: the counter stays at 23 and continues to 26. A term below 0 has no series."""
    first = window(records(ranks(0, 1)))
    state = begin(replace(first, rows=(_row(1, {"bubble.schedule": 20 * MS, "bubble.imbalance": 3 * MS}),)))
    assert sample_table(state)[catalogue.LEDGER, 0, "bubble", ""] == 0.023
    state = advance(state, quiet(first, rows=(_row(2, {"bubble.schedule": 2 * MS, "bubble.jitter": -7 * MS}),)))
    assert sample_table(state)[catalogue.LEDGER, 0, "bubble", ""] == 0.023
    state = advance(state, quiet(first, rows=(_row(3, {"bubble.jitter": 8 * MS}),)))
    assert sample_table(state)[catalogue.LEDGER, 0, "bubble", ""] == 0.026
    rows = (_row(1, {"bubble.schedule": 23 * MS}), _row(2, {"bubble.jitter": -5 * MS}))
    assert sample_table(begin(replace(first, rows=rows)))[catalogue.LEDGER, 0, "bubble", ""] == 0.023, (
        "both in one window"
    )
    below = begin(replace(first, rows=(_row(1, {"forward": MS, "bubble.jitter": -7 * MS}),)))
    assert sample_table(below).of(catalogue.LEDGER) == {("0", "forward", ""): 0.001}


def _row(step: int, terms: dict[str, int], *, rank: int = 0) -> Row:
    wall_ns = sum(terms.values())
    return Row(rank=rank, step=step, start_ns=step * 100 * MS, wall_ns=wall_ns, own_ns=0, anomalous=False, terms=terms)


def test_straggler_wait_is_counted_for_the_last_rank() -> None:
    table = sample_table(begin(window(records(ranks(0, 1, 2)))))
    assert table.of(catalogue.STRAGGLER_WAIT) == {("0",): 0, ("1",): 0.04}


def test_collectives_are_summed_by_axis_and_operation() -> None:
    """Four calls count: 30 and 10 ms in each of two steps, of which 10 are transfer.

    The bus factor of two ranks is 1/2.
    """
    table = sample_table(begin(window(records(ranks(0, 1, 2)))))
    labels = ("fsdp", "all_gather")
    assert table[catalogue.COLLECTIVE_BYTES, *labels] == 4 * BYTES
    assert table[catalogue.COLLECTIVE_TRANSFER, *labels] == 0.04
    assert table[catalogue.COLLECTIVE_WAIT, *labels] == 0.04
    assert table[catalogue.BUS_BANDWIDTH, *labels] == pytest.approx(BYTES / 2 / 0.01)
    counted = table.sample((catalogue.COLLECTIVE_TIMES, *labels)).value
    assert isinstance(counted, Distribution)
    assert (counted.counts, counted.sum) == ((0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0), 0.08)


def test_a_collective_with_unknown_end_has_no_duration() -> None:
    """One ended before the wait, one raised. Bytes count only for the one that did not raise."""
    unseen = [
        collective(110 * MS, 130 * MS, name="all_reduce", sequence=at, at=1, num_bytes=10, flags=flag)
        for at, flag in enumerate((Flag.DONE_BEFORE_WAIT, Flag.RAISED))
    ]
    table = sample_table(begin(window(records(ranks(0, 1, more=unseen)))))
    assert table[catalogue.COLLECTIVE_BYTES, "fsdp", "all_reduce"] == 10
    assert {key[2] for key in table.samples if key[0] == catalogue.COLLECTIVE_TIMES.name} == {"all_gather"}


def test_step_times_have_an_exemplar_with_step_and_rank() -> None:
    sample = sample_table(begin(window(records(ranks(0, 1, 2))))).sample(catalogue.STEP_TIMES)
    assert sample.value == Distribution(counts=(0, 4, *[0] * 11), sum=0.4)
    (example,) = sample.exemplars
    assert (example.value, example.labels, example.wall_ns) == (0.1, {"step": "2", "rank": "1"}, 300 * MS)


def test_ratios_are_of_the_latest_steps() -> None:
    """64 tokens per step of the job, three steps."""
    table = sample_table(begin(window(records(ranks(0, 1, 2)))))
    assert table[catalogue.MFU] == pytest.approx(0.1)
    assert table.of(catalogue.HFU) == {}, "no FLOPs were counted"
    assert table[catalogue.TOKENS] == 3 * 64
    assert table.of(catalogue.LAST_STEP) == {("0",): 2, ("1",): 2}
    assert table.of(catalogue.STEP_DURATION) == {("0",): 0.1, ("1",): 0.1}
    assert table.of(catalogue.MEMORY) == {("0", "resident"): 1002, ("1", "resident"): 2002}
    assert table[catalogue.OWN_TIME] == 6 * MS / 1e9


def test_a_node_counts_the_tokens_of_its_ranks() -> None:
    """Two of eight ranks: their share of the declared tokens, or the tokens they logged, with the warm-up step."""
    assert sample_table(begin(window(records(ranks(0, 1, 2), world_size=8))))[catalogue.TOKENS] == 3 * 64 * 2 / 8
    logged = [scalar("step_tokens", 5.0, at * 100 * MS, at=at) for at in (0, 1, 2)]
    assert sample_table(begin(window(records(ranks(0, 1, 2, more=logged), world_size=8))))[catalogue.TOKENS] == 15


def test_a_logged_value_is_that_of_the_lowest_rank() -> None:
    first = window(records(ranks(0, 1, 2)))
    state = begin(first)
    assert sample_table(state).of(catalogue.LOGGED) == {("loss",): 1.0}
    assert sample_table(advance(state, quiet(first))).of(catalogue.LOGGED) == {("loss",): 1.0}


def test_the_first_logged_names_have_series_and_expert_lists_none() -> None:
    many = [scalar(f"metric {number:02}", 1.0, 0, at=0) for number in range(40)]
    lists = [scalar(f"expert_tokens[0.{number}]", 1.0, 0, at=0) for number in range(40)]
    table = sample_table(begin(window(records(ranks(0, 1, more=[*lists, *many]))))).of(catalogue.LOGGED)
    assert len(table) == 16
    assert not any("[" in name for (name,) in table)


def test_faults_are_counted_by_rank_and_kind_without_marks() -> None:
    first = window(records(ranks(0, 1)))
    both = Fault(kind=FaultKind.NOT_FINITE, at_ns=1, ranks=(0, 1), what="loss is NaN")
    job = Fault(kind=FaultKind.RESTART, at_ns=2, what="attempt 1")
    mark = Fault(kind=FaultKind.EVALUATION, at_ns=3, ranks=(0,), what="evaluation", lasted_ns=1)
    state = begin(replace(first, faults=(both, job, mark)))
    expected = {("0", "not_finite"): 1, ("1", "not_finite"): 1, ("", "restart"): 1}
    assert sample_table(state).of(catalogue.FAULTS) == expected
    again = sample_table(advance(state, quiet(first, faults=(replace(both, at_ns=9),)))).of(catalogue.FAULTS)
    assert again == {("0", "not_finite"): 2, ("1", "not_finite"): 2, ("", "restart"): 1}


def test_data_age_grows_for_a_hanging_rank_but_not_for_an_ended_one() -> None:
    recorded = records(ranks(0, 1))
    alive, ended = statuses(recorded.ranks, last_ns=1_000 * MS)[0], statuses(recorded.ranks, state=RankState.ENDED)[1]
    state = begin(window(recorded, states=(alive, ended), at_ns=2_000 * MS))
    table = sample_table(state, moment=Moment(monotonic_ns=5_000 * MS, wall_ns=0, cpu_ns=7 * MS))
    assert table.of(catalogue.DATA_AGE) == {("0",): 4.0}
    assert table.of(catalogue.RANKS) == {("alive",): 1, ("ended",): 1, ("gone",): 0}
    assert table[catalogue.AGENT_LAG] == 3.0
    assert table[catalogue.AGENT_TIME] == 0.007
    assert table[catalogue.RECORDS] == 201
    assert table[catalogue.DROPPED] == 4


def test_run_and_rank_info_have_their_labels() -> None:
    table = sample_table(begin(window(records(ranks(0, 1)))))
    assert table.sample((catalogue.RUN_INFO, "2", "fsdp=2", "0", "2.13.0", "1", "", "")).labels[:2] == ("job-7", HOST)
    assert table[catalogue.RANK_INFO, 1, "fsdp=1", "a device", *[""] * 6] == 1


def test_modules_and_pipeline_actions_have_their_times() -> None:
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
    table = sample_table(begin(window(records(ranks(0, 1, more=level_2, level=2)))))
    assert table.of(catalogue.MODULE_TIME) == {("0", "layers.0 (Block)"): 0.015}
    assert table.of(catalogue.ACTION_TIME) == {("0", "3", "F"): 0.005}
    below = sample_table(begin(window(records(ranks(0, 1, more=level_2)))))
    assert below.of(catalogue.ACTION_TIME) == below.of(catalogue.MODULE_TIME) == {}


def _block(phase: Phase, start_ns: int, end_ns: int) -> Record:
    return Record(kind=Kind.SPAN, start_ns=start_ns, end_ns=end_ns, name="layers.0 (Block)", phase=phase, step=1)


def test_any_name_becomes_a_valid_label() -> None:
    """Half a surrogate pair cannot be encoded, and a name may have a megabyte."""
    table = sample_table(begin(window(records(ranks(0, 1, more=[scalar("\ud800" + "x" * 10**6, 1.0, 0, at=0)])))))
    (name,) = (name for (name,) in table.of(catalogue.LOGGED) if name != "loss")
    assert name == "?" + "x" * 127
