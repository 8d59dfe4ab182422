"""Series of a finished run: what each metric was at the end of each step."""

import numpy as np

from tests.exporters.runs import memory, two_ranks
from tests.timeline.build import Row, action, collective, group, phase, rank, stall, step, timeline
from traincope import analyze, metrics, open_run
from traincope.events import OPEN, Kind, Phase
from traincope.metrics import Metric
from traincope.timeline import Timeline
from traincope_exporters.history import MAKERS, Series, final
from traincope_exporters.history.finished import Finished
from traincope_exporters.history.series import counter, gauge, histogram

MS = 1_000_000
SECOND = 1_000_000_000

Points = list[tuple[int, float]]


def told(metric: Metric, run: Timeline) -> dict[tuple[str, ...], Points]:
    """Labels after run and host -> (seconds, value)."""
    found = MAKERS[metric.name](Finished(analyze(run)), metric)
    return {series.labels[2:]: points(series) for series in found}


def points(series: Series) -> Points:
    return [(at // SECOND, value) for at, value in zip(series.times_ns.tolist(), series.values.tolist(), strict=True)]


def run(*more: Row, ending: str | None = "clean") -> Timeline:
    """Steps of 1000 s."""
    return two_ranks(*more, ending=ending, scale=SECOND)


def test_the_first_step_is_a_step_but_enters_no_sum_of_time() -> None:
    assert told(metrics.STEPS, run())["0",] == [(0, 0), (1000, 1), (2000, 2), (3000, 3)]
    assert told(metrics.WALL, run())["0",] == [(0, 0), (2000, 1000), (3000, 2000)]


def test_terms_are_told_by_axis_and_those_without_time_are_left_out() -> None:
    found = told(metrics.LEDGER, run())
    assert sorted(found) == [
        ("0", "exposed_transfer", "tp"),
        ("0", "exposed_wait", "tp"),
        ("0", "forward", ""),
        ("0", "unattributed", ""),
        ("1", "exposed_transfer", "tp"),
        ("1", "forward", ""),
        ("1", "unattributed", ""),
    ]
    assert found["0", "exposed_wait", "tp"] == [(0, 0), (2000, 200), (3000, 400)]
    assert sum(all_[-1][1] for all_ in found.values()) == 4000


def test_groups_that_have_no_name_are_one_axis_however_many_they_are() -> None:
    """Two of them in a step of 1000 s, each 100 s on the wire; of which links their bandwidth is, nobody knows."""
    pairs = [group("group:0,1", 0, 1, key=key) for key in "ab"]
    first, second = (
        collective(start_s * SECOND, (start_s + 100) * SECOND, group=number, at=1, num_bytes=64)
        for number, start_s in enumerate((1000, 1200))
    )
    waits = stall(first, 1000 * SECOND, 1050 * SECOND), stall(second, 1200 * SECOND, 1300 * SECOND)
    steps = [step(number, number * 1000 * SECOND, (number + 1) * 1000 * SECOND) for number in range(2)]
    found = timeline(*(rank(at, *steps, first, second, *waits, groups=pairs) for at in (0, 1)))
    assert sorted(labels for labels in told(metrics.LEDGER, found) if labels[0] == "0") == [
        ("0", "exposed_transfer", "other"),
        ("0", "unattributed", ""),
    ]
    assert told(metrics.LEDGER, found)["0", "exposed_transfer", "other"][-1] == (2000, 150)
    assert told(metrics.COLLECTIVE_BYTES, found) == {("other", "all_gather"): [(0, 0), (2000, 4 * 64)]}
    assert told(metrics.BUS_BANDWIDTH, found) == {}


def test_collectives_are_told_over_the_ranks_of_a_host() -> None:
    assert told(metrics.COLLECTIVE_WAIT, run())["tp", "all_gather"][-1] == (3000, 400)
    assert told(metrics.COLLECTIVE_TRANSFER, run())["tp", "all_gather"][-1] == (3000, 400)
    assert told(metrics.COLLECTIVE_BYTES, run())["tp", "all_gather"] == [(0, 0), (2000, 8192), (3000, 16384)]


def test_whom_the_others_waited_for_is_told_step_by_step_and_sums_to_the_report() -> None:
    assert told(metrics.CAUSED_WAIT, run()) == {
        ("0",): [(0, 0), (2000, 0), (3000, 0)],
        ("1",): [(0, 0), (2000, 200), (3000, 400)],
    }
    demo = analyze(open_run("sample_runs/demo"))
    found = {series.labels[-1]: series for series in MAKERS["caused.wait"](Finished(demo), metrics.CAUSED_WAIT)}
    for one in demo.stragglers.ranks:
        assert round(found[str(one.rank)].values[-1] * 1e9) == one.caused_wait_ns
        assert len(found[str(one.rank)].values) == 1 + 29


def test_memory_and_logged_values_stand_where_they_were_recorded() -> None:
    loss = [
        Row(kind=Kind.SCALAR, start_ns=1000 * at + 990, end_ns=0, name="loss", value=int(np.float64(5 - at).view("i8")))
        for at in (1, 2)
    ]
    recorded = run(memory(1995, 100), memory(2995, 120), *loss)
    assert told(metrics.MEMORY, recorded) == {("0", "resident"): [(1995, 100), (2995, 120)]}
    assert {labels[-1]: all_ for labels, all_ in told(metrics.LOGGED, recorded).items()} == {
        "loss": [(1990, 4), (2990, 3)]
    }


def test_pipeline_actions_are_told_by_stage() -> None:
    actions = (
        action("F", 1800, 1850, stage=0, microbatch=0, at=1),
        action("F", 2800, 2850, stage=0, microbatch=0, at=2),
        action("B", 2900, 2990, stage=1, microbatch=0, at=2),
    )
    assert told(metrics.ACTION_TIME, run(*actions)) == {
        ("0", "0", "F"): [(0, 0), (2000, 50), (3000, 100)],
        ("0", "1", "B"): [(0, 0), (3000, 90)],
    }


def saving(start_ns: int, end_ns: int, *, at: int) -> Row:
    saved = phase(Phase.CHECKPOINT_STALL, start_ns, end_ns, at=at)
    return Row(kind=saved.kind, start_ns=start_ns, end_ns=end_ns, name="save checkpoint", phase=saved.phase, step=at)


def test_checkpoints_are_counted_when_they_are_whole_and_then_grow_old() -> None:
    recorded = run(saving(1800, 1900, at=1))
    assert told(metrics.CHECKPOINTS, recorded) == {(): [(0, 0), (1900, 1)]}
    assert told(metrics.CHECKPOINT_AGE, recorded) == {(): [(2000, 100), (3000, 1100)]}
    assert told(metrics.CHECKPOINT_AGE, run()) == {(): [(2000, 2000), (3000, 3000)]}


def test_a_checkpoint_that_was_never_whole_is_none() -> None:
    assert told(metrics.CHECKPOINTS, run(saving(2800, OPEN, at=2), ending=None)) == {(): [(0, 0)]}


def test_a_rank_without_an_end_is_gone_at_the_end() -> None:
    assert told(metrics.RANKS, run(ending=None)) == {
        ("alive",): [(2000, 2), (3000, 0)],
        ("ended",): [(2000, 0), (3000, 1)],
        ("gone",): [(2000, 0), (3000, 1)],
    }


def test_mfu_of_a_step_is_ideal_over_wall_and_in_the_mean_over_time_the_reports() -> None:
    analysis = analyze(open_run("sample_runs/demo"))
    whole = Finished(analysis)
    weighted = walls = 0.0
    for series in MAKERS["mfu"](whole, metrics.MFU):
        (_, ranks) = next((labels, own) for labels, own in whole.groups(metrics.MFU.labels) if labels == series.labels)
        wall_ns = sum(rank.ledger.wall_ns[rank.ledger.counted] for rank in ranks)
        weighted += float((series.values * wall_ns).sum())
        walls += float(np.sum(wall_ns))
    mfu = analysis.utilization.ratios.mfu
    assert mfu is not None
    assert abs(weighted / walls - mfu) < 1e-6


def test_records_and_losses_are_told_when_they_came_over_the_ranks_of_a_host() -> None:
    """Each rank has three steps, and a forward, a collective and a wait in two of them; rank 0 notes a loss of 7."""
    recorded = run(Row(kind=Kind.DROPPED, start_ns=1500, end_ns=1500, value=7))
    assert told(metrics.RECORDS, recorded) == {(): [(0, 0), (1000, 4), (2000, 13), (3000, 19)]}
    assert told(metrics.DROPPED, recorded) == {(): [(0, 0), (1500, 7), (3000, 7)]}


def test_a_counter_never_falls_and_has_one_point_a_ms() -> None:
    at = np.array([3 * MS, MS, MS + 5, 4 * MS], dtype=np.int64)
    made = counter(metrics.WALL, ("r", "h", "0"), at, np.array([-5, 2, 3, 1], dtype=np.int64), begin_ns=0, unit=1)
    assert made.times_ns.tolist() == [0, MS, 3 * MS, 4 * MS]
    assert made.values.tolist() == [0, 5, 5, 5]


def test_a_gauge_stands_at_its_last_value_of_a_ms() -> None:
    made = gauge(metrics.LAST_STEP, ("r", "h", "0"), np.array([7, 5, MS]), np.array([2, 1, 3]))
    assert (made.times_ns.tolist(), made.values.tolist()) == ([0, MS], [2, 3])


def test_a_value_on_a_bound_is_in_the_bucket_below_it() -> None:
    made = histogram(metrics.STEP_TIMES, ("r", "h"), np.array([MS]), np.array([200 * SECOND]), begin_ns=0, unit=SECOND)
    assert made.counts is not None
    assert made.counts[-1].tolist() == [*11 * [0], 1, 0]


def test_the_last_of_each_series_is_what_a_collector_gets() -> None:
    values = {(one.metric.name, one.labels[2:]): one.value for one in final(analyze(run()))}
    assert values["ledger", ("0", "exposed_wait", "tp")] == 400
    assert values["step.last", ("1",)] == 2


def test_a_name_of_any_length_and_of_half_characters_is_a_label() -> None:
    made = gauge(metrics.LOGGED, ("r", "h", "0", "x" * 1_000_000), np.array([0]), np.array([1]))
    assert made.labels[-1] == "x" * 128
    assert gauge(metrics.LOGGED, ("r", "h", "0", "\ud800"), np.array([0]), np.array([1])).labels[-1] == "?"
