"""A run in windows: sums are exactly those of the steps in windows, and say how many these are."""

import numpy as np
import pytest

from tests.analysis.lockstep import lockstep
from tests.analysis.windows import STEPS, recorded, thin
from tests.timeline.build import timeline
from traincope.analysis import FaultKind, analyze, cost
from traincope.analysis.ledger.coverage import MIN_DRAWN_STEPS, find_excluded_steps
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.stragglers.persistence import FEW_STEPS
from traincope.events import BLOCK_STEPS, FIRST_BLOCKS, Phase
from traincope.report.document.document import to_document
from traincope.report.sections.counted_steps import counted_steps, sampled
from traincope.report.sections.ledger import summary
from traincope.report.sections.values import plain
from traincope.units import duration

MS = 1_000_000
EARLY = FIRST_BLOCKS * BLOCK_STEPS


def counted(ledger: Ledger) -> list[int]:
    (numbers,) = {tuple(rank.numbers[rank.counted].tolist()) for rank in ledger.ranks}
    return list(numbers)


def test_the_terms_are_exactly_those_of_the_counted_steps() -> None:
    full = recorded()
    whole, ledger = analyze(full).ledger, analyze(thin(full, run_id="a", halvings=2)).ledger
    numbers = counted(ledger)
    assert len(numbers) < STEPS / 3
    for rank, same in zip(ledger.ranks, whole.ranks, strict=True):
        chosen = np.isin(same.numbers, numbers)
        for term, values in same.terms.items():
            assert rank.total(term) == (None if values is None else int(values[chosen].sum())), term
    assert sum(ledger.total(term) or 0 for term in ledger.order) == ledger.wall_ns
    assert sum(ledger.share(term) or 0.0 for term in ledger.order) == pytest.approx(1)


def test_costs_are_those_of_all_steps() -> None:
    full = recorded()
    whole, ledger = analyze(full).ledger, analyze(thin(full, run_id="a", halvings=2)).ledger
    assert ledger.timed_wall_ns == whole.wall_ns == whole.timed_wall_ns
    assert (whole.scale, whole.is_thinned, ledger.is_thinned) == (1.0, False, True)
    assert (ledger.timed_steps, whole.timed_steps) == (STEPS - 1, STEPS - 1)
    spent = cost(ledger)
    assert spent.wall_hours == cost(whole).wall_hours
    assert sum(hours or 0.0 for hours in spent.hours.values()) == pytest.approx(spent.wall_hours)


def test_what_every_step_records_is_known_of_all_steps() -> None:
    """Steps that load a batch for long are rare, and in no window."""
    work = [[60 * MS + (500 * MS if number % 50 == 49 else 0)] * 2 for number in range(STEPS)]
    full = timeline(*lockstep(work, transfer_ns=2 * MS, of=Phase.DATA_WAIT, all_ns=MS))
    whole, ledger = analyze(full).ledger, analyze(thin(full, run_id="a", halvings=3)).ledger
    for rank, same in zip(ledger.ranks, whole.ranks, strict=True):
        assert rank.known("data_wait") == same.known("data_wait")
        assert ledger.share_on((rank,), "data_wait") == whole.share_on((same,), "data_wait")


@pytest.mark.slow
def test_the_first_windows_are_left_out_once_the_drawn_ones_are_enough() -> None:
    """The first 84 steps compile for 100 ms more. They are half of the steps in detail, and 1.5 % of the run."""
    steps = 800 * BLOCK_STEPS
    work = [[60 * MS + (100 * MS if number < EARLY else 0)] * 2 for number in range(steps)]
    full = timeline(*lockstep(work, transfer_ns=2 * MS, all_ns=MS))
    thinned = thin(full, run_id="a", halvings=5, first_blocks=FIRST_BLOCKS)
    ledger = analyze(thinned).ledger
    numbers = counted(ledger)
    assert min(numbers) >= EARLY
    assert len(numbers) >= MIN_DRAWN_STEPS >= FEW_STEPS
    assert ledger.wall_ns / ledger.rank_steps == pytest.approx(analyze(full).ledger.wall_ns / (2 * steps), rel=0.03)


def test_long_first_steps_are_left_out_while_few_windows_are_drawn() -> None:
    """Steps 1 to 4 take 400 ms more. They are a twentieth of the steps in detail, and a hundredth of the run."""
    steps = 60 * BLOCK_STEPS
    work = [[60 * MS + (400 * MS if 0 < number < 5 else 0)] * 2 for number in range(steps)]
    full = timeline(*lockstep(work, transfer_ns=2 * MS, all_ns=MS))
    ledger = analyze(thin(full, run_id="a", halvings=3, first_blocks=FIRST_BLOCKS)).ledger
    assert counted(ledger)[:3] == [5, 6, 7]
    assert EARLY - 1 in counted(ledger)
    assert ledger.wall_ns / ledger.rank_steps == pytest.approx(62 * MS, rel=0.03)


@pytest.mark.parametrize(
    ("blocks", "halvings"),
    [
        (FIRST_BLOCKS + 4, 2),  # too few drawn windows
        (FIRST_BLOCKS + 40, 0),  # all blocks are windows
    ],
)
def test_the_first_windows_stay_if_they_are_most_of_the_evidence(blocks: int, halvings: int) -> None:
    full = recorded(steps=blocks * BLOCK_STEPS)
    thinned = thin(full, run_id="a", halvings=halvings, first_blocks=FIRST_BLOCKS)
    assert find_excluded_steps(thinned).early == frozenset()
    assert counted(analyze(thinned).ledger)[0] == 1


def test_the_report_says_how_many_steps_its_sums_are_from() -> None:
    full = recorded()
    thinned = thin(full, run_id="a", halvings=2)
    document = to_document(analyze(thinned))
    ledger = document["ledger"]
    assert ledger is not None
    number = len(counted(analyze(thinned).ledger))
    assert counted_steps(ledger) == f"{number} of {STEPS - 1} steps"
    assert sampled(ledger) == f", from {number} of {STEPS - 1} steps"
    mean_ns = ledger["wall_ns"] / (2 * number)
    lead = f"mean step {duration(mean_ns)} over 2 ranks and {number} of {STEPS - 1} steps"
    assert plain(document, summary(document).lead) == lead
    whole = to_document(analyze(full))["ledger"]
    assert whole is not None
    assert (counted_steps(whole), sampled(whole)) == (f"{STEPS - 1} steps", "")


def test_a_slow_step_of_the_first_windows_has_its_cause_although_it_enters_no_sum() -> None:
    steps = 800 * BLOCK_STEPS
    work = [[60 * MS + (900 * MS if (number, rank) == (30, 1) else 0) for rank in (0, 1)] for number in range(steps)]
    full = timeline(*lockstep(work, transfer_ns=2 * MS, of=Phase.BACKWARD, all_ns=MS))
    analysis = analyze(thin(full, run_id="a", halvings=5, first_blocks=FIRST_BLOCKS))
    assert min(counted(analysis.ledger)) >= EARLY
    (slow,) = (fault for fault in analysis.faults if fault.kind is FaultKind.SLOW_STEP)
    assert (slow.step, slow.ranks) == (30, (1,))
    assert "backward" in slow.evidence


@pytest.mark.parametrize(("first_blocks", "is_thinned"), [(39, False), (36, True)])
def test_one_block_without_detail_in_forty_thins_no_run(first_blocks: int, is_thinned: bool) -> None:
    """The native recorder leaves out one block to see what light steps cost."""
    ledger = analyze(thin(recorded(steps=STEPS), run_id="a", halvings=9, first_blocks=first_blocks)).ledger
    assert ledger.timed_steps > max(rank.num_counted for rank in ledger.ranks)
    assert ledger.is_thinned == is_thinned
