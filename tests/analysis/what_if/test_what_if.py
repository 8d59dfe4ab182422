"""Predictions compared with the truth: the same workload with the change really made."""

from dataclasses import replace
from random import Random

import pytest

from evaluation.truth.trainings.on_paper import recorded, wired
from evaluation.truth.trainings.playing import truth, wall_ns
from evaluation.truth.trainings.scripted import OWN, Scripted
from evaluation.truth.trainings.workloads import MS, WORKLOADS, Workload
from tests.analysis.lockstep import lockstep
from tests.analysis.test_random_runs import random_run
from tests.seeds import seeds
from tests.timeline.build import rank, step, timeline
from traincope.analysis import Analysis, Prediction, analyze, parse_changes, what_if
from traincope.analysis.replaying.moves import Begin, CollectiveKey, Finish, Moves, StepBegins, StepEnds, Work
from traincope.analysis.replaying.replay import Factors, replay
from traincope.errors import UsageError
from traincope.timeline import build_timeline

NAMED = {workload.name: workload for workload in WORKLOADS}
SEEN = [wired(workload) for workload in WORKLOADS if workload.ends_seen]
STEPS = 4


def predicted(analysis: Analysis, expression: str) -> Prediction:
    prediction = what_if(analysis, parse_changes(expression, analysis))
    assert prediction.reason is None
    return prediction


def true_ns(workload: Workload) -> int:
    return max(map(wall_ns, truth(workload)))


def halved(values_ns: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(ns // 2 for ns in values_ns)


def changed(workload: Workload) -> dict[str, Workload]:
    """Expression -> the workload with that change really made."""
    forward = {"forward_ns": halved(workload.forward_ns), "overlapped_ns": halved(workload.overlapped_ns)}
    links = {
        axis: {link: ns // 2 if link[0] == axis else ns for link, ns in workload.links_ns.items()}
        for axis in workload.axes
    }
    return {
        "forward=0.5": replace(workload, **forward),
        "compute=0.5": replace(workload, **forward, backward_ns=halved(workload.backward_ns)),
        "unattributed=0": replace(workload, late_ns=(0,)),
        "data_wait=0, checkpoint_stall=0": replace(workload, data_ns=(0,), save_ns=(0,)),
        **{f"{axis}.transfer=0.5": replace(workload, links_ns=links[axis]) for axis in workload.axes},
    }


@pytest.mark.parametrize("workload", SEEN, ids=lambda workload: workload.name)
def test_the_prediction_equals_the_changed_workload(workload: Workload) -> None:
    analysis = analyze(recorded(workload, steps=STEPS))
    for expression, as_asked in changed(workload).items():
        prediction = predicted(analysis, expression)
        assert prediction.replayed_ns == prediction.recorded_ns == (true_ns(workload),) * (STEPS - 1)
        assert prediction.predicted_mean_ns == pytest.approx(true_ns(as_asked), abs=10), expression
        assert prediction.lower_bound_mean_ns == pytest.approx(prediction.predicted_mean_ns)


def test_unmeasured_transfers_put_the_truth_between_lower_bound_and_prediction() -> None:
    """A transfer of 80 hidden behind 120 of compute: only its upper bound is known. With half the compute, 20 show."""
    workload = NAMED["async: hidden"]
    prediction = predicted(analyze(recorded(workload, steps=STEPS)), "forward=0.5")
    assert true_ns(changed(workload)["forward=0.5"]) == 480 * MS
    assert prediction.lower_bound_mean_ns == pytest.approx(460 * MS)
    assert prediction.predicted_mean_ns == pytest.approx(520 * MS, abs=10)


def test_a_straggler_without_its_delay_causes_no_wait() -> None:
    """Rank 3's lateness passes from its tp group over dp to all others; without it 720 becomes 640."""
    workload = NAMED["dp x tp: slow links, rank 3 late"]
    analysis = analyze(recorded(workload, steps=STEPS))
    assert predicted(analysis, "rank3.unattributed=0").predicted_mean_ns == pytest.approx(640 * MS)
    assert predicted(analysis, "rank2.unattributed=0").predicted_mean_ns == pytest.approx(720 * MS)


def test_without_lateness_all_ranks_join_with_the_first() -> None:
    """50 and 80 become 50; 70 and 60 become 60; each plus a transfer of 10. Half the lateness is halfway."""
    analysis = analyze(timeline(*lockstep([(50, 50), (50, 80), (70, 60)], transfer_ns=10)))
    assert predicted(analysis, "dp.wait=1").changed_ns == (90, 80)
    assert predicted(analysis, "dp.wait=0").changed_ns == (60, 70)
    assert predicted(analysis, "dp.wait=0.5").changed_ns == (75, 75)


def test_the_initial_offset_of_ranks_does_not_count() -> None:
    """Rank 1 begins 100 before rank 0 and works 100 longer: the lead helps in the first round only."""
    key = CollectiveKey(instance=0, axis="dp", ranks=2)

    def moves(start_ns: int, work_ns: int) -> Moves:
        work = Work("forward", work_ns)
        end = Finish(key, delay_ns=5, late_ns=0, measured=True)
        return Moves(start_ns=start_ns, moves=(StepBegins(7), work, Begin(key), end, StepEnds(7)))

    assert replay({0: moves(100, 10), 1: moves(0, 110)}, Factors({})) == (115,)


def test_changes_combine_and_equal_changes_multiply() -> None:
    analysis = analyze(timeline(*lockstep([(50, 50), (40, 40)], transfer_ns=10)))
    assert predicted(analysis, "forward=0.5, dp.transfer=2").changed_ns == (40,)
    assert predicted(analysis, "forward=0.5,forward=0.5").changed_ns == (20,)
    assert predicted(analysis, "rank0.compute=0.5").changed_ns == (50,)
    assert predicted(analysis, "rank0.compute=2").changed_ns == (90,)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(12))
def test_the_truth_of_random_workloads_is_within_lower_bound_and_prediction(seed: int) -> None:
    workload = Scripted(name="random", seed=seed)
    analysis = analyze(recorded(workload, steps=STEPS))
    questions = {f"{term}=0.5": replace(workload, work_halved=term) for term in OWN}
    axes = {row.axis for row in analysis.comm}
    questions |= {f"{axis}.transfer=0.5": replace(workload, axis_halved=axis) for axis in sorted(axes)}
    for expression, as_asked in questions.items():
        prediction = predicted(analysis, expression)
        assert abs(prediction.replay_error_ratio) < 1e-6
        assert prediction.lower_bound_mean_ns - 100 <= true_ns(as_asked) <= prediction.predicted_mean_ns + 100, (
            expression
        )


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(12))
def test_any_recorded_run_is_replayed_or_has_a_reason(seed: int) -> None:
    analysis = analyze(build_timeline(random_run(Random(seed))))
    waits = [f"{row.axis}.wait=0" for row in analysis.comm if f"exposed_wait[{row.axis}]" in analysis.ledger.order]
    for expression in ("compute=0.5", *waits):
        prediction = what_if(analysis, parse_changes(expression, analysis))
        assert (prediction.reason is None) == (len(prediction.changed_ns) > 0)
        assert all(ns >= 0 for ns in prediction.changed_ns)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("forward", "'forward' is not a change: write NAME=FACTOR"),
        ("", "'' is not a change"),
        ("forward=fast", "forward=fast: fast is not a factor; give a number of at least 0"),
        ("forward=-1", "-1 is not a factor"),
        ("forward=nan", "nan is not a factor"),
        ("tp.transfer=0.5", "this run has no tp.transfer to change; choose one of compute, forward"),
        ("bubble.jitter=0", "this run has no bubble.jitter to change"),
        ("evaluation=0", "this run has no evaluation to change"),
        ("rank7.forward=0.5", "rank 7 completed no step"),
        ("rank0.dp.wait=0", "a change of an axis applies to all its ranks; remove rank0"),
    ],
)
def test_an_invalid_change_is_refused(expression: str, sentence: str) -> None:
    analysis = analyze(timeline(*lockstep([(50, 50), (40, 50)], transfer_ns=10)))
    with pytest.raises(UsageError) as refused:
        parse_changes(expression, analysis)
    assert sentence in str(refused.value)


def test_a_comma_in_an_axis_name_does_not_separate_changes() -> None:
    """Groups outside the mesh are named by their ranks."""
    workload = replace(NAMED["tp: slow link"], links_ns={})
    analysis = analyze(recorded(workload, steps=STEPS))
    with pytest.raises(UsageError, match=r"this run has no group:0,1\.transfer to change;"):
        parse_changes("forward=1,group:0,1.transfer=0.5", analysis)


def test_without_steps_or_common_clocks_there_is_a_reason_instead() -> None:
    alone = analyze(timeline(rank(0)))
    assert what_if(alone, parse_changes("forward=0.5", analyze(timeline(rank(0, step(0, 0, 9)))))).reason == (
        "it has no counted step"
    )
    two_hosts = analyze(timeline(*(rank(at, step(0, 0, 100), boot_id=f"boot-{at}") for at in (0, 1))))
    reason = what_if(two_hosts, parse_changes("forward=0.5", two_hosts)).reason
    assert reason == "the error between the clocks of its hosts is unknown"
