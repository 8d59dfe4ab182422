"""The device ledger of recorded programs against what marks can see of them, and against the truth."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.ingest.test_device_ledger import Steps, ledger_steps
from tests.seeds import examples
from tests.timeline.device.projection import projected, true_stalls
from tests.timeline.device.recorded import padded, record
from tests.virtual_gpu.actions import (
    Action,
    Group,
    Program,
    RecordEvent,
    WaitEvent,
    after,
    backward,
    collective,
    evaluate,
    forward,
    kernel,
    operator,
    optimizer,
    sleep,
    step,
)
from tests.virtual_gpu.programs import PROGRAMS
from tests.virtual_gpu.random_programs import programs
from tests.virtual_gpu.truth import truth
from traincope.analysis.analyze import Analysis, analyze
from traincope.events import Kind
from traincope.record.gpu import device as devices
from traincope.timeline import LedgerClock, open_run
from traincope.timeline import timeline as timelines
from traincope.timeline.device import why_not_on_device

CALL_NS = 1_000
"""Length of a call of the runtime."""
ANCHOR_NS = 4
"""Error of the instant that ties the device's clock to the host's: a poll takes a virtual nanosecond."""


@pytest.fixture(autouse=True)
def exact_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of the virtual GPU do not vary."""
    for module in (timelines, devices):
        monkeypatch.setattr(module, "EMPTY_NS", ANCHOR_NS)


def recorded(program: Program, folder: Path) -> Analysis:
    """Record a padded program, and analyze the run."""
    return analyze(open_run(record(program, folder)))


def assert_equal(found: Steps, expected: Steps) -> None:
    """Compare the ledgers to the resolution of the anchor. The terms of each step sum to its wall time exactly."""
    assert found.keys() == expected.keys()
    for rank, steps in expected.items():
        for number, terms in steps.items():
            seen = _with_wait_as_transfer(found[rank][number])
            assert sum(ns for term, ns in seen.items() if term != "wall") == seen["wall"]
            off = {term: (seen.get(term, 0), terms.get(term, 0)) for term in seen.keys() | terms.keys()}
            assert all(abs(ns - true_ns) <= ANCHOR_NS for ns, true_ns in off.values()), (rank, number, off)


def _with_wait_as_transfer(terms: dict[str, int]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for term, ns in terms.items():
        sums[term.replace("exposed_wait", "exposed_transfer")] += ns
    return dict(sums)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_ledger_of_a_named_program_is_what_marks_can_see(name: str, tmp_path: Path) -> None:
    program = padded(PROGRAMS[name])
    analysis = recorded(program, tmp_path)
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert_equal(ledger_steps(analysis.ledger), {rank: projected(program, rank) for rank in range(len(program.ranks))})


@settings(max_examples=examples(20))
@given(programs())
def test_the_ledger_of_random_ranks_is_what_marks_can_see(program: Program) -> None:
    program = padded(program)
    with TemporaryDirectory() as folder:
        analysis = recorded(program, Path(folder))
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert_equal(ledger_steps(analysis.ledger), {rank: projected(program, rank) for rank in range(len(program.ranks))})


SPLIT = {
    "exposed collective": [{"exposed_transfer[world]": 20}] * 2,
    "slow link": [{"exposed_transfer[world]": 200}] * 2,
    "late peer": [{"exposed_wait[world]": 40, "exposed_transfer[world]": 20}, {"exposed_transfer[world]": 20}],
    "two axes": [{"exposed_transfer[tp]": 5, "exposed_transfer[dp]": 7}] * 4,
}
"""Microseconds of the stalls of each rank."""


@pytest.mark.parametrize("name", SPLIT)
def test_stalls_are_split_into_wait_and_transfer_over_the_ranks(name: str, tmp_path: Path) -> None:
    """A call of 1 us lies between the mark and the launch of a collective."""
    ledger = recorded(padded(PROGRAMS[name]), tmp_path).ledger
    for rank, terms in zip(ledger.ranks, SPLIT[name], strict=True):
        seen = {term: ns for term in ledger.order if term.startswith("exposed_") and (ns := rank.total(term))}
        assert seen == pytest.approx({term: us * 1_000 for term, us in terms.items()}, abs=CALL_NS)
    assert ledger.ambiguous_waits() == {}


@st.composite
def reductions(draw: st.DrawFn) -> Program:
    """Ranks that reduce in each backward, with collectives queued behind each other, and wait for some of them."""
    num_ranks, num_steps = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    group = Group(name="0", ranks=tuple(range(num_ranks)))
    shared = draw(
        st.lists(
            st.lists(st.tuples(st.integers(1, 200), st.booleans()), min_size=1, max_size=3),
            min_size=num_steps,
            max_size=num_steps,
        )
    )

    def one_step(number: int, collectives: list[tuple[int, bool]]) -> Action:
        issued: list[Action] = []
        for at, (us, _) in enumerate(collectives):
            issued += [kernel(draw(st.integers(1, 100))), *after(f"g{at}", stream=7, on=40), collective(group, us)]
            issued += [RecordEvent(event=f"r{at}", stream=40)]
        waits = [WaitEvent(event=f"r{at}", stream=7) for at, (_, waited) in enumerate(collectives) if waited]
        hidden = [kernel(draw(st.integers(1, 100)))] if draw(st.booleans()) else []
        return step(
            number,
            forward(kernel(draw(st.integers(1, 300)))),
            backward(evaluate("MmBackward0", *issued, *hidden)),
            *waits,
            optimizer(kernel(draw(st.integers(1, 50)))),
        )

    ranks = tuple(tuple(one_step(at + 1, each) for at, each in enumerate(shared)) for _ in range(num_ranks))
    return Program(ranks=ranks)


@settings(max_examples=examples(20))
@given(reductions())
def test_no_wait_is_called_transfer_and_no_transfer_wait(program: Program) -> None:
    """The rest is listed as ambiguous."""
    program = padded(program)
    with TemporaryDirectory() as folder:
        ledger = recorded(program, Path(folder)).ledger
    for rank in ledger.ranks:
        true, num_stalls = true_stalls(program, rank.rank)
        wait_ns, transfer_ns = rank.total("exposed_wait[world]") or 0, rank.total("exposed_transfer[world]") or 0
        split_ns = transfer_ns - int(rank.ambiguous_waits_ns[rank.counted].sum())
        event(f"split: {wait_ns + split_ns > 0}")
        assert wait_ns <= true.get("exposed_wait[world]", 0) + num_stalls * CALL_NS
        assert split_ns <= true.get("exposed_transfer[world]", 0) + num_stalls * CALL_NS


phases = st.lists(
    st.builds(
        lambda make, gpu_us, host_us: make(kernel(gpu_us), sleep(host_us)),
        st.sampled_from((forward, optimizer, backward, operator)),
        st.integers(1, 40),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(20))
@given(st.lists(phases, min_size=1, max_size=3), st.integers(1, 300))
def test_a_gpu_whose_marks_were_all_queued_in_time_has_no_launch_gap(steps: list[list[Action]], lead_us: int) -> None:
    """The truth has none, within phases either. Otherwise launch gaps are unknown, or at least those between phases."""
    body = tuple(step(number, *actions) for number, actions in enumerate(steps, start=1))
    program = padded(Program(ranks=(body,)), lead_us=lead_us)
    with TemporaryDirectory() as folder:
        analysis = recorded(program, Path(folder))
    assert analysis.run_ahead is not None
    event(f"fed: {analysis.run_ahead.fed}")
    true_ns = sum(truth(program)[0][number].terms.get("launch_gap", 0) for number in range(1, len(steps) + 1))
    if analysis.run_ahead.fed:
        assert true_ns == 0
        assert analysis.ledger.total("launch_gap") == 0
    else:
        assert analysis.ledger.total("launch_gap") != 0


@pytest.mark.parametrize("name", ["1F1B", "zero bubble"])
def test_a_pipeline_whose_actions_have_no_marks_stays_on_the_clocks_of_its_hosts(name: str, tmp_path: Path) -> None:
    timeline = open_run(record(padded(PROGRAMS[name]), tmp_path))
    first, second = timeline.ranks
    action = first.of_kind(Kind.PHASE)[:1]
    action["kind"] = Kind.ACTION
    actions = np.concatenate([first.main, *(action,) * 2])
    actions["step"][-2:] = [step.number for step in first.steps[:2]]
    timeline = replace(timeline, ranks=(replace(first, threads={**first.threads, "main": actions}), second))
    assert why_not_on_device(timeline) == "marks on the compute stream measure only 0 of 2 steps of rank 0"
    assert analyze(timeline).ledger.clock is LedgerClock.HOST


def test_a_rank_without_marks_leaves_all_ranks_on_the_clock_of_their_hosts(tmp_path: Path) -> None:
    timeline = open_run(record(padded(PROGRAMS["late peer"]), tmp_path))
    assert why_not_on_device(timeline) is None
    first, second = timeline.ranks
    unmarked = replace(second, threads={"main": second.main})
    one_sided = replace(timeline, ranks=(first, unmarked))
    assert why_not_on_device(one_sided) == "rank 1 has no marks on a compute stream"
    ledger = analyze(one_sided).ledger
    assert ledger.clock is LedgerClock.HOST
    assert [rank.num_counted for rank in ledger.ranks] == [1, 1]
