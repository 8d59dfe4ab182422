"""Predictions against the truth: the same workload, worked out on paper with that changed."""

from dataclasses import replace
from random import Random

import pytest

from tests.analysis.lockstep import lockstep
from tests.analysis.test_random_runs import made
from tests.timeline.build import rank, step, timeline
from tests.truth.on_paper import recorded, wired
from tests.truth.playing import truth, wall_ns
from tests.truth.scripted import OWN, Scripted
from tests.truth.workloads import MS, WORKLOADS, Workload
from traincope.analysis import Analysis, Prediction, analyze, parse_changes, what_if
from traincope.analysis.what_if_moves import Begin, Finish, Met, Moves, StepBegins, StepEnds, Work
from traincope.analysis.what_if_replay import Factors, replay
from traincope.errors import UsageError
from traincope.timeline import build_timeline

NAMED = {workload.name: workload for workload in WORKLOADS}
SEEN = [wired(workload) for workload in WORKLOADS if workload.ends_seen]
STEPS = 4


def predicted(found: Analysis, expression: str) -> Prediction:
    prediction = what_if(found, parse_changes(expression, found))
    assert prediction.reason is None
    return prediction


def true_ns(workload: Workload) -> int:
    return max(map(wall_ns, truth(workload)))


def halved(values_ns: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ns // 2 for ns in values_ns)


def changed(workload: Workload) -> dict[str, Workload]:
    """Expression -> what it asks for, really made so."""
    forward = {"forward_ns": halved(workload.forward_ns), "beside_ns": halved(workload.beside_ns)}
    links = {
        axis: {of: ns // 2 if of[0] == axis else ns for of, ns in workload.links_ns.items()} for axis in workload.axes
    }
    return {
        "forward=0.5": replace(workload, **forward),
        "compute=0.5": replace(workload, **forward, backward_ns=halved(workload.backward_ns)),
        "unattributed=0": replace(workload, late_ns=(0,)),
        "data_wait=0, checkpoint_stall=0": replace(workload, data_ns=(0,), save_ns=(0,)),
        **{f"{axis}.transfer=0.5": replace(workload, links_ns=links[axis]) for axis in workload.axes},
    }


@pytest.mark.parametrize("workload", SEEN, ids=lambda workload: workload.name)
def test_what_is_predicted_is_what_the_changed_workload_takes(workload: Workload) -> None:
    found = analyze(recorded(workload, steps=STEPS))
    for expression, as_asked in changed(workload).items():
        prediction = predicted(found, expression)
        assert prediction.replayed_ns == prediction.recorded_ns == (true_ns(workload),) * (STEPS - 1)
        assert prediction.predicted_mean_ns == pytest.approx(true_ns(as_asked), abs=10), expression
        assert prediction.least_mean_ns == pytest.approx(prediction.predicted_mean_ns)


def test_where_nobody_saw_a_wires_end_the_truth_is_between_the_least_and_the_predicted() -> None:
    """80 on the wire beside 120 of compute: all that is known is that it took no more. Halved, 20 of it show."""
    workload = NAMED["async: hidden"]
    prediction = predicted(analyze(recorded(workload, steps=STEPS)), "forward=0.5")
    assert true_ns(changed(workload)["forward=0.5"]) == 480 * MS
    assert prediction.least_mean_ns == pytest.approx(460 * MS)
    assert prediction.predicted_mean_ns == pytest.approx(520 * MS, abs=10)


def test_a_rank_that_is_made_normal_costs_nobody_anything() -> None:
    """Rank 3's lateness goes from its tp group over dp to all others; 720 without it is 640."""
    workload = NAMED["dp x tp: slow links, rank 3 late"]
    found = analyze(recorded(workload, steps=STEPS))
    assert predicted(found, "rank3.unattributed=0").predicted_mean_ns == pytest.approx(640 * MS)
    assert predicted(found, "rank2.unattributed=0").predicted_mean_ns == pytest.approx(720 * MS)


def test_without_lateness_all_are_as_early_as_the_first() -> None:
    """Of 50 and 80 to 50, of 70 and 60 to 60, each with 10 on the wire; half the lateness is halfway."""
    found = analyze(timeline(*lockstep([(50, 50), (50, 80), (70, 60)], transfer_ns=10)))
    assert predicted(found, "dp.wait=1").changed_ns == (90, 80)
    assert predicted(found, "dp.wait=0").changed_ns == (60, 70)
    assert predicted(found, "dp.wait=0.5").changed_ns == (75, 75)


def test_how_far_ranks_were_apart_at_first_has_settled_when_it_counts() -> None:
    """Rank 1 begins 100 before rank 0 and needs as much longer: that helps it once."""
    met = Met(instance=0, axis="dp", ranks=2)

    def moves(start_ns: int, work_ns: int) -> Moves:
        own = Work("forward", work_ns)
        end = Finish(met, delay_ns=5, late_ns=0, seen=True)
        return Moves(start_ns=start_ns, moves=(StepBegins(7), own, Begin(met), end, StepEnds(7)))

    assert replay({0: moves(100, 10), 1: moves(0, 110)}, Factors({})) == (115,)


def test_several_changes_act_together_and_the_same_one_twice_twice() -> None:
    found = analyze(timeline(*lockstep([(50, 50), (40, 40)], transfer_ns=10)))
    assert predicted(found, "forward=0.5, dp.transfer=2").changed_ns == (40,)
    assert predicted(found, "forward=0.5,forward=0.5").changed_ns == (20,)
    assert predicted(found, "rank0.compute=0.5").changed_ns == (50,)
    assert predicted(found, "rank0.compute=2").changed_ns == (90,)


@pytest.mark.parametrize("seed", range(12))
def test_of_random_workloads_the_truth_is_what_is_predicted_or_within_what_nobody_saw(seed: int) -> None:
    workload = Scripted(name="random", seed=seed)
    found = analyze(recorded(workload, steps=STEPS))
    questions = {f"{term}=0.5": replace(workload, work_halved=term) for term in OWN}
    axes = {row.axis for row in found.comm}
    questions |= {f"{axis}.transfer=0.5": replace(workload, axis_halved=axis) for axis in sorted(axes)}
    for expression, as_asked in questions.items():
        prediction = predicted(found, expression)
        assert abs(prediction.replay_error_ratio) < 1e-6
        assert prediction.least_mean_ns - 100 <= true_ns(as_asked) <= prediction.predicted_mean_ns + 100, expression


@pytest.mark.parametrize("seed", range(12))
def test_whatever_was_recorded_is_played_or_it_is_said_why_not(seed: int) -> None:
    found = analyze(build_timeline(made(Random(seed))))
    waits = [f"{row.axis}.wait=0" for row in found.comm if f"exposed_wait[{row.axis}]" in found.ledger.order]
    for expression in ("compute=0.5", *waits):
        prediction = what_if(found, parse_changes(expression, found))
        assert (prediction.reason is None) == (len(prediction.changed_ns) > 0)
        assert all(ns >= 0 for ns in prediction.changed_ns)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("forward", "'forward' is no change: write NAME=FACTOR"),
        ("", "'' is no change"),
        ("forward=fast", "forward=fast: fast is no factor; give a number from 0 on, 0.5 for half the time"),
        ("forward=-1", "-1 is no factor"),
        ("forward=nan", "nan is no factor"),
        ("tp.transfer=0.5", "nothing of this run is called tp.transfer; what can be changed: compute, forward"),
        ("bubble.jitter=0", "nothing of this run is called bubble.jitter"),
        ("evaluation=0", "nothing of this run is called evaluation"),
        ("rank7.forward=0.5", "rank 7 completed no step"),
        ("rank0.dp.wait=0", "an axis is changed for all its ranks; leave out rank0"),
    ],
)
def test_what_is_no_change_is_refused_in_words(expression: str, sentence: str) -> None:
    found = analyze(timeline(*lockstep([(50, 50), (40, 50)], transfer_ns=10)))
    with pytest.raises(UsageError) as refused:
        parse_changes(expression, found)
    assert sentence in str(refused.value)


def test_a_comma_in_the_name_of_an_axis_parts_no_changes() -> None:
    """Groups that no mesh names are called by their ranks."""
    workload = replace(NAMED["tp: slow link"], links_ns={})
    found = analyze(recorded(workload, steps=STEPS))
    with pytest.raises(UsageError, match=r"nothing of this run is called group:0,1\.transfer;"):
        parse_changes("forward=1,group:0,1.transfer=0.5", found)


def test_without_a_step_or_a_clock_there_is_no_prediction_but_a_reason() -> None:
    alone = analyze(timeline(rank(0)))
    assert what_if(alone, parse_changes("forward=0.5", analyze(timeline(rank(0, step(0, 0, 9)))))).reason == (
        "no step of it counts"
    )
    apart = analyze(timeline(*(rank(at, step(0, 0, 100), boot_id=f"boot-{at}") for at in (0, 1))))
    reason = what_if(apart, parse_changes("forward=0.5", apart)).reason
    assert reason == "nothing says how far the clocks of its hosts are from each other"
