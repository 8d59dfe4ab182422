"""The device ledger of recorded programs against what marks can see of them, and against the truth."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.ingest.test_device_ledger import Steps, ledger_steps
from tests.timeline.device.projection import projected
from tests.timeline.device.recorded import padded, record
from tests.virtual_gpu.actions import Action, Program, backward, forward, kernel, operator, optimizer, sleep, step
from tests.virtual_gpu.programs import PROGRAMS
from tests.virtual_gpu.random_programs import programs
from tests.virtual_gpu.truth import truth
from traincope.analysis.analyze import Analysis, analyze
from traincope.timeline import LedgerClock, open_run
from traincope.timeline import timeline as timelines
from traincope.timeline.device import why_not_on_device

ANCHOR_NS = 4
"""Error of the instant that ties the device's clock to the host's: a poll takes a virtual nanosecond."""


@pytest.fixture(autouse=True)
def exact_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of the virtual GPU do not vary."""
    monkeypatch.setattr(timelines, "EMPTY_NS", ANCHOR_NS)


def recorded(program: Program, folder: Path) -> Analysis:
    """Record a padded program, and analyze the run."""
    return analyze(open_run(record(program, folder)))


def assert_equal(found: Steps, expected: Steps) -> None:
    """Compare the ledgers to the resolution of the anchor. The terms of each step sum to its wall time exactly."""
    assert found.keys() == expected.keys()
    for rank, steps in expected.items():
        for number, terms in steps.items():
            seen = found[rank][number]
            assert sum(ns for term, ns in seen.items() if term != "wall") == seen["wall"]
            off = {term: (seen.get(term, 0), terms.get(term, 0)) for term in seen.keys() | terms.keys()}
            assert all(abs(ns - true_ns) <= ANCHOR_NS for ns, true_ns in off.values()), (rank, number, off)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_ledger_of_a_named_program_is_what_marks_can_see(name: str, tmp_path: Path) -> None:
    program = padded(PROGRAMS[name])
    analysis = recorded(program, tmp_path)
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert_equal(ledger_steps(analysis.ledger), {rank: projected(program, rank) for rank in range(len(program.ranks))})


@settings(max_examples=40)
@given(programs())
def test_the_ledger_of_random_ranks_is_what_marks_can_see(program: Program) -> None:
    program = padded(program)
    with TemporaryDirectory() as folder:
        analysis = recorded(program, Path(folder))
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert_equal(ledger_steps(analysis.ledger), {rank: projected(program, rank) for rank in range(len(program.ranks))})


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


@settings(max_examples=40)
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
