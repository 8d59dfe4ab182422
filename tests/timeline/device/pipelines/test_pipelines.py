"""Pipelined runs on the clocks of their GPUs: the recorder's own hooks against virtual GPUs, and the truth."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import event, given, settings
from numpy.typing import NDArray

from tests.ingest.test_device_ledger import ledger_steps
from tests.seeds import examples
from tests.timeline.device.pipelines.cases import CASES, pipelines
from tests.timeline.device.pipelines.programs import Pipeline
from tests.timeline.device.pipelines.truth import BUBBLE, TRANSFER, Ledgers, by_kernels, by_marks, marked_steps
from tests.timeline.device.recorded import padded, record
from tests.virtual_gpu.kineto import write_traces
from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.ledger.coverage import ExcludedSteps
from traincope.analysis.pipeline.replicas import RESOLUTION_RATIO
from traincope.events import Flag, Kind
from traincope.ingest import import_traces
from traincope.record.gpu import device as devices
from traincope.timeline import LedgerClock, RankTimeline, open_run
from traincope.timeline import timeline as timelines
from traincope.timeline.device import on_device

ANCHOR_NS = 4
"""Error of the instant that ties the device's clock to the host's: a poll takes a virtual nanosecond."""
UNSHOWN = "host-bound zero bubble"
"""Its host queues each wait after the message has ended."""
TWO_RANKS = [name for name, case in CASES.items() if len(case.orders) == 2]


@pytest.fixture(autouse=True)
def exact_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of the virtual GPU do not vary."""
    for module in (timelines, devices):
        monkeypatch.setattr(module, "EMPTY_NS", ANCHOR_NS)


def recorded(pipeline: Pipeline, folder: Path) -> tuple[Analysis, Ledgers]:
    """Record a pipeline. Returns its analysis, and the ledger that marks can see."""
    program = padded(pipeline.program())
    return analyze(open_run(record(program, folder))), by_marks(pipeline, program)


def assert_equal(found: Ledgers, expected: Ledgers, *, within_ns: int = ANCHOR_NS) -> None:
    assert found.keys() == expected.keys()
    for rank, steps in expected.items():
        for number, terms in steps.items():
            off = {
                term: (found[rank][number].get(term, 0), terms.get(term, 0)) for term in {*terms, *found[rank][number]}
            }
            assert all(abs(ns - true_ns) <= within_ns for ns, true_ns in off.values()), (rank, number, off)


@pytest.mark.parametrize("name", [name for name in CASES if name != UNSHOWN])
def test_the_ledger_of_a_recorded_pipeline_is_what_marks_can_see(name: str, tmp_path: Path) -> None:
    analysis, truth = recorded(CASES[name], tmp_path)
    assert (analysis.ledger.clock, analysis.why_on_host) == (LedgerClock.DEVICE, None)
    assert analysis.ledger.ambiguous_waits() == {}
    assert_equal(ledger_steps(analysis.ledger), truth)


def test_the_schedule_shows_when_the_gpus_ran_the_actions(tmp_path: Path) -> None:
    program = padded(CASES["1F1B"].program())
    bubble = analyze(open_run(record(program, tmp_path))).bubble
    assert bubble is not None
    assert (bubble.schedule, bubble.num_microbatches, bubble.step) == ("1f1b", 4, 1)
    assert bubble.timetable is not None
    steps = {rank: marked_steps(program, rank)[1] for rank in (0, 1)}
    begin_ns = min(step.begin_ns for step in steps.values())
    for rank, step in steps.items():
        row = bubble.timetable.rows[rank]
        assert [ran.action for ran in row] == sorted(step.actions, key=lambda action: step.actions[action])
        shown = [ns + begin_ns for ran in row for ns in (ran.start, ran.end)]
        assert shown == pytest.approx([ns for ran in row for ns in step.actions[ran.action]], abs=ANCHOR_NS)


def test_a_pipeline_whose_messages_no_mark_shows_has_no_bubble_and_names_the_reason(tmp_path: Path) -> None:
    analysis, truth = recorded(CASES[UNSHOWN], tmp_path)
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert analysis.bubble is None
    assert set(analysis.ledger.ambiguous_waits()) == {("pp", AmbiguousWait.DEVICE_MARKS)}
    found = ledger_steps(analysis.ledger)
    for rank, steps in truth.items():
        for number, true in steps.items():
            terms, pool_ns = found[rank][number], sum(true.get(term, 0) for term in (*BUBBLE, TRANSFER, "unattributed"))
            assert terms.get(TRANSFER, 0) + terms.get("unattributed", 0) == pytest.approx(pool_ns, abs=ANCHOR_NS)
            assert not set(terms) & set(BUBBLE)


@pytest.mark.slow
@settings(max_examples=examples(8))
@given(pipelines())
def test_a_random_pipeline_has_the_true_bubble_or_none(pipeline: Pipeline) -> None:
    with TemporaryDirectory() as folder:
        analysis, truth = recorded(pipeline, Path(folder))
    assert analysis.ledger.clock is LedgerClock.DEVICE
    found = ledger_steps(analysis.ledger)
    for rank, steps in truth.items():
        for number, true in steps.items():
            terms = found[rank][number]
            replayed = bool(set(terms) & set(BUBBLE))
            event(f"replayed: {replayed}")
            split = (*BUBBLE, TRANSFER) if replayed else ()
            within = dict.fromkeys(BUBBLE[:2], ANCHOR_NS)
            within |= dict.fromkeys((BUBBLE[2], TRANSFER), RESOLUTION_RATIO * true["wall"])
            for term in split:
                assert abs(terms.get(term, 0) - true.get(term, 0)) <= within[term], (rank, number, term, terms, true)
            pools = (*BUBBLE, TRANSFER, *(() if replayed else ("unattributed",)))
            for names in (pools, *((term,) for term in {*terms, *true} - {*pools})):
                seen, expected = (sum(of.get(term, 0) for term in names) for of in (terms, true))
                assert abs(seen - expected) <= ANCHOR_NS, (rank, number, names, terms, true)


@pytest.mark.parametrize("name", TWO_RANKS)
def test_the_ledger_of_an_imported_pipeline_is_the_truth(name: str, tmp_path: Path) -> None:
    """Groups of messages between two ranks do not name the pipeline of more of them."""
    program = CASES[name].program()
    import_traces(write_traces(program, tmp_path / "traces"), tmp_path / "run")
    ledger = analyze(open_run(tmp_path / "run")).ledger
    assert_equal(ledger_steps(ledger), by_kernels(CASES[name], program), within_ns=0)


def test_a_running_job_has_the_rows_of_the_whole_run(tmp_path: Path) -> None:
    """Step 1 is over, and step 2 not yet."""
    timeline = open_run(record(padded(CASES["1F1B"].program()), tmp_path))
    whole = ledger_steps(analyze(timeline).ledger)
    measured = on_device(timeline, until=1)
    excluded = ExcludedSteps(warm_up=frozenset({0}), dropped=frozenset())
    live = ledger_steps(analyze(timeline, excluded_steps=excluded, measured=measured).ledger)
    assert {rank: steps[1] for rank, steps in live.items()} == {rank: steps[1] for rank, steps in whole.items()}
    assert {number for steps in live.values() for number in steps} == {0, 1}


def test_a_step_between_windows_changes_no_share_of_the_others(tmp_path: Path) -> None:
    """Three equal steps. The second has no detail: its length is the host's, moved to the GPU's."""
    timeline = open_run(record(padded(replace(CASES["1F1B"], steps=3).program()), tmp_path))
    whole = analyze(timeline).ledger
    ledger = analyze(replace(timeline, ranks=tuple(_without_detail(rank, 2) for rank in timeline.ranks))).ledger
    assert ledger.clock is LedgerClock.DEVICE
    assert [rank.numbers[rank.counted].tolist() for rank in ledger.ranks] == [[1, 3], [1, 3]]
    assert ledger.timed_wall_ns == pytest.approx(whole.wall_ns, rel=0.005)
    for rank, of_whole in zip(ledger.ranks, whole.ranks, strict=True):
        for term in (*BUBBLE, TRANSFER, "forward", "backward"):
            own, same = rank.terms[term], of_whole.terms[term]
            assert own is not None
            assert same is not None
            assert own[rank.counted].tolist() == same[rank.counted].tolist(), term


def _without_detail(rank: RankTimeline, number: int) -> RankTimeline:
    """Leave out what a rank records of a step only in windows."""
    threads = {}
    for name, records in rank.threads.items():
        detail = np.isin(records["kind"], (Kind.ACTION, Kind.COLLECTIVE, Kind.STALL)) | (
            records["flags"] & Flag.DEVICE > 0
        )
        threads[name] = records[~(detail & (records["step"] == number))]
    steps = tuple(replace(step, detailed=step.detailed and step.number != number) for step in rank.steps)
    return replace(rank, threads=threads, steps=steps)


def test_a_step_in_which_an_action_lacks_its_marks_is_not_counted(tmp_path: Path) -> None:
    timeline = open_run(record(padded(CASES["1F1B"].program()), tmp_path))
    first, last = timeline.ranks
    damaged = replace(last, threads={name: _without_an_action(records) for name, records in last.threads.items()})
    ledger = analyze(replace(timeline, ranks=(first, damaged))).ledger
    assert ledger.clock is LedgerClock.DEVICE
    assert [rank.numbers[rank.counted].tolist() for rank in ledger.ranks] == [[2], [2]]


def _without_an_action(records: NDArray[np.void]) -> NDArray[np.void]:
    """Leave out an action of step 1 that a GPU measured."""
    on_device = (records["kind"] == Kind.ACTION) & (records["flags"] & Flag.DEVICE > 0)
    kept: NDArray[np.void] = np.delete(records, np.flatnonzero(on_device & (records["step"] == 1))[:1])
    return kept
