"""Series of a finished run: the value of each metric at the end of each step."""

import numpy as np

from tests.exporters.runs import TP, memory, two_ranks
from tests.timeline.build import Row, action, collective, group, phase, rank, stall, step, timeline
from traincope import analyze, open_run
from traincope.events import OPEN, Kind, Phase
from traincope.metrics import catalogue
from traincope.metrics.metric import Metric
from traincope.timeline import Timeline
from traincope_exporters.history import MAKERS, Series, final
from traincope_exporters.history.finished_run import FinishedRun
from traincope_exporters.history.series import counter, gauge, histogram

MS = 1_000_000
SECOND = 1_000_000_000

Points = list[tuple[int, float]]


def series_of(metric: Metric, run: Timeline) -> dict[tuple[str, ...], Points]:
    """Labels after run and host -> (seconds, value)."""
    result = MAKERS[metric.name](FinishedRun(analyze(run)), metric)
    return {series.labels[2:]: points(series) for series in result}


def points(series: Series) -> Points:
    return [(at // SECOND, value) for at, value in zip(series.times_ns.tolist(), series.values.tolist(), strict=True)]


def run(*more: Row, ending: str | None = "clean") -> Timeline:
    """Run with steps of 1000 s."""
    return two_ranks(*more, ending=ending, scale=SECOND)


def test_the_warm_up_step_counts_but_enters_no_sum_of_time() -> None:
    assert series_of(catalogue.STEPS, run())["0",] == [(0, 0), (1000, 1), (2000, 2), (3000, 3)]
    assert series_of(catalogue.WALL, run())["0",] == [(0, 0), (2000, 1000), (3000, 2000)]


def test_ledger_terms_have_an_axis_and_empty_ones_are_left_out() -> None:
    result = series_of(catalogue.LEDGER, run())
    assert sorted(result) == [
        ("0", "exposed_transfer", "tp"),
        ("0", "exposed_wait", "tp"),
        ("0", "forward", ""),
        ("0", "unattributed", ""),
        ("1", "exposed_transfer", "tp"),
        ("1", "forward", ""),
        ("1", "unattributed", ""),
    ]
    assert result["0", "exposed_wait", "tp"] == [(0, 0), (2000, 200), (3000, 400)]
    assert sum(all_[-1][1] for all_ in result.values()) == 4000


def test_unnamed_groups_share_one_axis() -> None:
    """Two unnamed groups in a step of 1000 s, each with a transfer of 100 s.

    Their links and so their bandwidth are unknown.
    """
    pairs = [group("group:0,1", 0, 1, key=key) for key in "ab"]
    first, second = (
        collective(start_s * SECOND, (start_s + 100) * SECOND, group=number, at=1, num_bytes=64)
        for number, start_s in enumerate((1000, 1200))
    )
    waits = stall(first, 1000 * SECOND, 1050 * SECOND), stall(second, 1200 * SECOND, 1300 * SECOND)
    steps = [step(number, number * 1000 * SECOND, (number + 1) * 1000 * SECOND) for number in range(2)]
    result = timeline(*(rank(at, *steps, first, second, *waits, groups=pairs) for at in (0, 1)))
    assert sorted(labels for labels in series_of(catalogue.LEDGER, result) if labels[0] == "0") == [
        ("0", "exposed_transfer", "other"),
        ("0", "unattributed", ""),
    ]
    assert series_of(catalogue.LEDGER, result)["0", "exposed_transfer", "other"][-1] == (2000, 150)
    assert series_of(catalogue.COLLECTIVE_BYTES, result) == {("other", "all_gather"): [(0, 0), (2000, 4 * 64)]}
    assert series_of(catalogue.BUS_BANDWIDTH, result) == {}


def test_collectives_are_summed_over_the_ranks_of_a_host() -> None:
    assert series_of(catalogue.COLLECTIVE_WAIT, run())["tp", "all_gather"][-1] == (3000, 400)
    assert series_of(catalogue.COLLECTIVE_TRANSFER, run())["tp", "all_gather"][-1] == (3000, 400)
    assert series_of(catalogue.COLLECTIVE_BYTES, run())["tp", "all_gather"] == [(0, 0), (2000, 8192), (3000, 16384)]


def test_a_stall_whose_peers_have_no_records_is_an_ambiguous_wait() -> None:
    call = collective(1000 * SECOND, 1200 * SECOND, at=1)
    rows = [*(step(number, number * 1000 * SECOND, (number + 1) * 1000 * SECOND) for number in range(2)), call]
    result = timeline(rank(0, *rows, stall(call, 1000 * SECOND, 1200 * SECOND), groups=[TP]), world_size=2)
    assert series_of(catalogue.AMBIGUOUS_WAIT, result) == {("tp", "records_missing"): [(0, 0), (2000, 200)]}
    assert series_of(catalogue.AMBIGUOUS_WAIT, run()) == {}


def test_a_collective_that_nobody_waits_for_has_a_wait_of_0() -> None:
    """A series that appears with its first increase hides that increase from `rate()` and `increase()`."""
    unwaited = collective(1300 * SECOND, 1400 * SECOND, name="broadcast", at=1)
    steps = [step(number, number * 1000 * SECOND, (number + 1) * 1000 * SECOND) for number in range(3)]
    result = timeline(*(rank(at, *steps, unwaited, groups=[TP]) for at in (0, 1)))
    assert series_of(catalogue.COLLECTIVE_WAIT, result)["tp", "broadcast"] == [(0, 0)]


def test_straggler_wait_is_spread_over_steps_and_sums_to_the_report() -> None:
    assert series_of(catalogue.STRAGGLER_WAIT, run()) == {
        ("0",): [(0, 0), (2000, 0), (3000, 0)],
        ("1",): [(0, 0), (2000, 200), (3000, 400)],
    }
    demo = analyze(open_run("sample_runs/demo"))
    result = {
        series.labels[-1]: series for series in MAKERS["straggler.wait"](FinishedRun(demo), catalogue.STRAGGLER_WAIT)
    }
    for straggler in demo.stragglers.ranks:
        assert round(result[str(straggler.rank)].values[-1] * 1e9) == straggler.straggler_wait_ns
        assert len(result[str(straggler.rank)].values) == 1 + 29


def test_memory_and_logged_values_keep_their_times() -> None:
    loss = [
        Row(kind=Kind.SCALAR, start_ns=1000 * at + 990, end_ns=0, name="loss", value=int(np.float64(5 - at).view("i8")))
        for at in (1, 2)
    ]
    recorded = run(memory(1995, 100), memory(2995, 120), *loss)
    assert series_of(catalogue.MEMORY, recorded) == {("0", "resident"): [(1995, 100), (2995, 120)]}
    assert {labels[-1]: all_ for labels, all_ in series_of(catalogue.LOGGED, recorded).items()} == {
        "loss": [(1990, 4), (2990, 3)]
    }


def test_pipeline_actions_are_summed_by_stage() -> None:
    actions = (
        action("F", 1800, 1850, stage=0, microbatch=0, at=1),
        action("F", 2800, 2850, stage=0, microbatch=0, at=2),
        action("B", 2900, 2990, stage=1, microbatch=0, at=2),
    )
    assert series_of(catalogue.ACTION_TIME, run(*actions)) == {
        ("0", "0", "F"): [(0, 0), (2000, 50), (3000, 100)],
        ("0", "1", "B"): [(0, 0), (3000, 90)],
    }


def saving(start_ns: int, end_ns: int, *, at: int) -> Row:
    saved = phase(Phase.CHECKPOINT_STALL, start_ns, end_ns, at=at)
    return Row(kind=saved.kind, start_ns=start_ns, end_ns=end_ns, name="save checkpoint", phase=saved.phase, step=at)


def test_checkpoints_count_when_complete_and_age_from_then() -> None:
    recorded = run(saving(1800, 1900, at=1))
    assert series_of(catalogue.CHECKPOINTS, recorded) == {(): [(0, 0), (1900, 1)]}
    assert series_of(catalogue.CHECKPOINT_AGE, recorded) == {(): [(2000, 100), (3000, 1100)]}
    assert series_of(catalogue.CHECKPOINT_AGE, run()) == {(): [(2000, 2000), (3000, 3000)]}


def test_an_incomplete_checkpoint_does_not_count() -> None:
    assert series_of(catalogue.CHECKPOINTS, run(saving(2800, OPEN, at=2), ending=None)) == {(): [(0, 0)]}


def test_a_rank_without_an_end_is_gone_at_the_end() -> None:
    assert series_of(catalogue.RANKS, run(ending=None)) == {
        ("alive",): [(2000, 2), (3000, 0)],
        ("ended",): [(2000, 0), (3000, 1)],
        ("gone",): [(2000, 0), (3000, 1)],
    }


def test_the_time_weighted_mean_of_mfu_equals_the_report() -> None:
    analysis = analyze(open_run("sample_runs/demo"))
    finished = FinishedRun(analysis)
    weighted = walls = 0.0
    for series in MAKERS["mfu"](finished, catalogue.MFU):
        (_, ranks) = next(
            (labels, node_ranks)
            for labels, node_ranks in finished.groups(catalogue.MFU.labels)
            if labels == series.labels
        )
        wall_ns = sum(rank.ledger.wall_ns[rank.ledger.counted] for rank in ranks)
        weighted += float((series.values * wall_ns).sum())
        walls += float(np.sum(wall_ns))
    mfu = analysis.utilization.ratios.mfu
    assert mfu is not None
    assert abs(weighted / walls - mfu) < 1e-6


def test_events_and_drops_are_counted_at_their_times() -> None:
    """Each rank has three steps; two of them have a forward, a collective and a wait. Rank 0 drops 7 events."""
    recorded = run(Row(kind=Kind.DROPPED, start_ns=1500, end_ns=1500, value=7))
    assert series_of(catalogue.RECORDS, recorded) == {(): [(0, 0), (1000, 4), (2000, 13), (3000, 19)]}
    assert series_of(catalogue.DROPPED, recorded) == {(): [(0, 0), (1500, 7), (3000, 7)]}


def test_a_counter_never_falls_and_has_one_point_per_ms() -> None:
    at = np.array([3 * MS, MS, MS + 5, 4 * MS], dtype=np.int64)
    series = counter(catalogue.WALL, ("r", "h", "0"), at, np.array([-5, 2, 3, 1], dtype=np.int64), begin_ns=0, unit=1)
    assert series.times_ns.tolist() == [0, MS, 3 * MS, 4 * MS]
    assert series.values.tolist() == [0, 5, 5, 5]


def test_a_gauge_keeps_its_last_value_of_a_ms() -> None:
    series = gauge(catalogue.LAST_STEP, ("r", "h", "0"), np.array([7, 5, MS]), np.array([2, 1, 3]))
    assert (series.times_ns.tolist(), series.values.tolist()) == ([0, MS], [2, 3])


def test_a_value_on_a_bound_is_in_the_bucket_below_it() -> None:
    series = histogram(
        catalogue.STEP_TIMES, ("r", "h"), np.array([MS]), np.array([200 * SECOND]), begin_ns=0, unit=SECOND
    )
    assert series.counts is not None
    assert series.counts[-1].tolist() == [*11 * [0], 1, 0]


def test_final_returns_the_last_value_of_each_series() -> None:
    values = {(straggler.metric.name, straggler.labels[2:]): straggler.value for straggler in final(analyze(run()))}
    assert values["ledger", ("0", "exposed_wait", "tp")] == 400
    assert values["step.last", ("1",)] == 2


def test_any_name_becomes_a_label() -> None:
    series = gauge(catalogue.LOGGED, ("r", "h", "0", "x" * 1_000_000), np.array([0]), np.array([1]))
    assert series.labels[-1] == "x" * 128
    assert gauge(catalogue.LOGGED, ("r", "h", "0", "\ud800"), np.array([0]), np.array([1])).labels[-1] == "?"
