"""The ledger puts every nanosecond of every step on every rank into exactly one term."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import examples
from tests.timeline.build import Row, action, collective, group, message, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, analyze
from traincope.analysis.attribution.terms import PHASE_TERMS
from traincope.events import APART, Kind, Phase
from traincope.store.segments.evaluating import TRAINING
from traincope.timeline import Timeline

GROUPS = (group("fsdp", 0, 1), group("pp", 0, 1), group("tp", 0, 1))
LAST = 100
"""Random runs lie in [0, LAST) ns, so that a test can label each ns separately."""


def terms_of(analysis: Analysis, *, number: int, at: int) -> dict[str, int]:
    """Return the nonzero terms of a rank in its step at position `at`."""
    ledger = next(ledger for ledger in analysis.ledger.ranks if ledger.rank == number)
    values = {term: int(ns[at]) for term, ns in ledger.terms.items() if ns is not None}
    return {term: ns for term, ns in values.items() if ns}


def assert_exact(analysis: Analysis) -> None:
    for ledger in analysis.ledger.ranks:
        summed = sum(ns for ns in ledger.terms.values() if ns is not None)
        assert ledger.wall_ns.tolist() == (summed + 0 * ledger.wall_ns).tolist()


def test_terms_of_a_step_by_hand() -> None:
    """Rank 1 sleeps 40 before its all-gather; the wire takes 10; rank 0 stalls for all 50."""
    early, late = collective(30, 80), collective(70, 80)
    first = rank(
        0,
        step(0, 0, 100),
        phase(Phase.FORWARD, 10, 80),
        early,
        stall(early, 30, 80),
        phase(Phase.OPTIMIZER, 80, 95),
        groups=GROUPS,
    )
    second = rank(1, step(0, 0, 100), phase(Phase.FORWARD, 10, 80), late, stall(late, 70, 80), groups=GROUPS)
    result = analyze(timeline(first, second))
    assert terms_of(result, number=0, at=0) == {
        "forward": 20,
        "exposed_wait[fsdp]": 40,
        "exposed_transfer[fsdp]": 10,
        "optimizer": 15,
        "unattributed": 15,
    }
    assert terms_of(result, number=1, at=0) == {"forward": 60, "exposed_transfer[fsdp]": 10, "unattributed": 30}
    assert_exact(result)


def test_a_term_that_no_probe_measures_is_none_and_not_zero() -> None:
    ledger = analyze(timeline(rank(0, step(0, 0, 100)))).ledger
    unknown = ("exposed_memory", "compile", "sync", "launch_gap", "kernel_wait")
    assert [term for term in ledger.order if ledger.total(term) is None] == list(unknown)
    assert [term for term, ns in ledger.ranks[0].terms.items() if ns is None] == list(unknown)
    assert (ledger.total("gc"), ledger.total("unattributed")) == (0, 100)


def test_compile_time_that_one_rank_recorded_makes_the_term_known_on_all_ranks() -> None:
    ranks = rank(0, step(0, 0, 10), phase(Phase.COMPILE, 0, 5)), rank(1, step(0, 0, 10))
    ledger = analyze(timeline(*ranks)).ledger
    assert [rank.total("compile") for rank in ledger.ranks] == [5, 0]
    assert (ledger.total("compile"), ledger.total("sync")) == (5, None)


TRAINING_TERMS = {of: term for of, term in PHASE_TERMS.items() if of != Phase.EVALUATION}


def test_every_phase_of_training_has_its_own_term() -> None:
    rows = [phase(of, 10 * of, 10 * of + 10) for of in TRAINING_TERMS]
    result = analyze(timeline(rank(0, step(0, 0, 230), *rows)))
    assert terms_of(result, number=0, at=0) == dict.fromkeys(TRAINING_TERMS.values(), 10) | {"unattributed": 20}


def test_evaluation_is_not_part_of_a_step() -> None:
    """One evaluation is inside step 1 and one between steps. The run is from 0 to 200."""
    inside, between = phase(Phase.EVALUATION, 120, 150), phase(Phase.EVALUATION, 180, 190)
    steps = (step(0, 0, 100), step(1, 100, 180), step(2, 190, 200))
    ledger = analyze(timeline(rank(0, *steps[:2], inside, between, steps[2]))).ledger
    assert ledger.ranks[0].wall_ns.tolist() == [100, 50, 10]
    assert (ledger.total("unattributed"), ledger.total("evaluation")) == (60, None)
    assert (ledger.evaluation_ns, ledger.evaluation_ratio) == (40, 0.2)
    loaded = phase(Phase.DATA_WAIT, -1_000, -900)
    after_start = analyze(timeline(rank(0, loaded, *steps[:2], inside, between, steps[2]))).ledger
    assert after_start.evaluation_ratio == 0.2
    first = phase(Phase.EVALUATION, -200, -100)
    assert analyze(timeline(rank(0, loaded, first, *steps))).ledger.evaluation_ratio == 0.25


def test_collectives_in_an_evaluation_do_not_count() -> None:
    """Rank 1 is 30 late for the evaluation's all-gather, which does not count; the training's takes 10."""
    training = collective(20, 30, sequence=1)
    ranks = []
    for number, begin in ((0, 40), (1, 70)):
        call = collective(begin, 80, sequence=2)
        rows = (training, stall(training, 20, 30), phase(Phase.EVALUATION, 35, 90), call, stall(call, begin, 80))
        ranks.append(rank(number, step(0, 0, 100), *rows, groups=GROUPS))
    result = analyze(timeline(*ranks))
    assert_exact(result)
    assert terms_of(result, number=0, at=0) == {"exposed_transfer[fsdp]": 10, "unattributed": 35}
    assert [(row.count, row.transfer_ns, row.wait_ns, row.exposed_ns) for row in result.comm] == [(2, 20, 0, 20)]
    assert [row.own_wait_ns for row in result.stragglers.ranks] == [0, 0]


def test_a_phase_across_a_step_border_is_shared_by_both_steps() -> None:
    result = analyze(timeline(rank(0, step(0, 0, 50), step(1, 50, 100), phase(Phase.DATA_WAIT, 40, 70))))
    assert terms_of(result, number=0, at=0) == {"data_wait": 10, "unattributed": 40}
    assert terms_of(result, number=0, at=1) == {"data_wait": 20, "unattributed": 30}


def test_a_stall_without_the_peers_records_is_an_ambiguous_wait() -> None:
    gather = collective(20, 60)
    result = analyze(timeline(rank(0, step(0, 0, 100), gather, stall(gather, 20, 60), groups=GROUPS), world_size=2))
    assert terms_of(result, number=0, at=0) == {"exposed_transfer[fsdp]": 40, "unattributed": 60}
    assert result.ledger.ranks[0].ambiguous_waits_ns.tolist() == [40]


def test_the_first_of_several_steps_is_excluded() -> None:
    result = analyze(timeline(rank(0, step(0, 0, 90), step(1, 90, 100), step(2, 100, 120))))
    assert (result.ledger.excluded_steps, result.ledger.wall_ns, result.ledger.rank_steps) == ((0,), 30, 2)


def test_a_step_that_one_rank_dropped_counts_on_no_rank() -> None:
    """Rank 1 lacks step 2 between other steps. A further step of rank 0 at the end is not a drop."""
    first = [step(at, 10 * at, 10 * at + 10) for at in range(6)]
    second = [row for row in first[:5] if row.step != 2]
    gathers = [collective(10 * at, 10 * at + 5, sequence=at, at=at) for at in range(5)]
    result = analyze(timeline(rank(0, *first, *gathers, groups=GROUPS), rank(1, *second, *gathers, groups=GROUPS)))
    assert (result.ledger.excluded_steps, result.ledger.dropped_steps) == ((0,), (2,))
    assert [ledger.numbers[ledger.counted].tolist() for ledger in result.ledger.ranks] == [[1, 3, 4, 5], [1, 3, 4]]
    assert (result.ledger.wall_ns, result.ledger.rank_steps) == (70, 7)
    assert [row.count for row in result.comm] == [6]


def test_the_only_step_of_a_run_is_counted() -> None:
    result = analyze(timeline(rank(0, step(0, 0, 90))))
    assert (result.ledger.excluded_steps, result.ledger.wall_ns) == ((), 90)


def test_every_rank_has_every_term_of_the_run() -> None:
    result = analyze(
        timeline(rank(0, step(0, 0, 10), phase(Phase.GC, 0, 5)), rank(1, step(0, 0, 10), phase(Phase.COMPILE, 0, 5)))
    )
    assert [list(ledger.terms) for ledger in result.ledger.ranks] == [list(result.ledger.order)] * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Records and steps of a random run of two ranks."""

    rows: tuple[list[Row], list[Row]]

    def timeline(self) -> Timeline:
        return timeline(*(rank(number, *rows, groups=GROUPS) for number, rows in enumerate(self.rows)))


spans = st.tuples(st.integers(0, LAST - 1), st.integers(0, 40)).map(lambda drawn: (drawn[0], min(sum(drawn), LAST)))


@st.composite
def runs(draw: st.DrawFn, *, actions: bool) -> Workload:
    """Draw two ranks with steps, arbitrarily overlapping phases, and collectives that one of them may lack."""
    count = draw(st.integers(1, 5))
    return Workload(rows=(draw(_rows(0, count=count, actions=actions)), draw(_rows(1, count=count, actions=actions))))


@st.composite
def _rows(draw: st.DrawFn, number: int, *, count: int, actions: bool) -> list[Row]:
    border = draw(st.integers(1, LAST - 1))
    rows = [step(0, draw(st.integers(0, border - 1)), border), step(1, border, draw(st.integers(border, LAST)))]
    rows += [
        phase(draw(st.sampled_from([*PHASE_TERMS, Phase.NAMED])), *draw(spans)) for _ in range(draw(st.integers(0, 6)))
    ]
    rows += [Row(kind=Kind.SPAN, start_ns=s, end_ns=e, name="mine") for s, e in draw(st.lists(spans, max_size=2))]
    for sequence in range(count):
        at = draw(st.integers(0, len(GROUPS) - 1))
        begin, end = draw(spans)
        call = collective(begin, end, group=at, sequence=sequence)
        rows += draw(st.sampled_from([[], [call], [call, stall(call, draw(st.integers(begin, end)), end)]]))
    if actions:
        for microbatch in range(draw(st.integers(0, 3))):
            kinds = draw(st.sampled_from(["F", "FB", "FIW"]))
            rows += [_action(kind, number, microbatch, draw(spans), border) for kind in kinds]
    return sorted(rows, key=lambda row: row.start_ns)


def _action(kind: str, stage: int, microbatch: int, span: tuple[int, int], border: int) -> Row:
    return action(kind, *span, stage=stage, microbatch=microbatch, at=int(span[0] >= border))


def labels(workload: Workload, *, number: int) -> list[Counter[str]]:
    """Count the ns of each step of a rank by term, with a label for each ns, without evaluation."""
    rows = workload.rows[number]
    return [
        Counter(
            label
            for ns in range(row.start_ns, row.end_ns)
            if (label := _label(workload, ns, number=number)) is not None
        )
        for row in rows
        if row.kind == Kind.STEP
    ]


def _label(workload: Workload, ns: int, *, number: int) -> str | None:
    parts = [row for row in workload.rows[number] if row.phase in APART.values() and row.start_ns <= ns < row.end_ns]
    if parts:
        latest = max(row.start_ns for row in parts)
        part = [row.phase for row in parts if row.start_ns == latest][-1]
        return PHASE_TERMS.get(part, "span.named")
    if _between_evaluations(workload.rows[number], ns):
        return None
    kinds = (Kind.PHASE, Kind.STALL)
    is_open = [row for row in workload.rows[number] if row.kind in kinds and row.start_ns <= ns < row.end_ns]
    if not is_open:
        return "unattributed"
    if any(row.phase == Phase.EVALUATION for row in is_open):
        return None
    latest = max(row.start_ns for row in is_open)
    inner = [row for row in is_open if row.start_ns == latest][-1]
    if inner.kind == Kind.PHASE:
        return PHASE_TERMS[inner.phase]
    if any(row.phase == Phase.CHECKPOINT_STALL for row in is_open if row.kind == Kind.PHASE):
        return "checkpoint_stall"
    return _stall_label(workload, inner, ns, number=number)


def _between_evaluations(rows: list[Row], ns: int) -> bool:
    """Return whether the ns lies between two evaluations in a gap without training."""
    forwards = [row for row in rows if row.phase == Phase.EVALUATION]
    before = max((row.end_ns for row in forwards if row.start_ns <= ns), default=LAST + 1)
    after = min((row.start_ns for row in forwards if row.start_ns > ns), default=0)
    work = [(row.start_ns, row.end_ns) for row in rows if row.kind == Kind.PHASE and row.phase in TRAINING]
    work += [(border, border) for row in rows if row.kind == Kind.STEP for border in (row.start_ns, row.end_ns)]
    return before <= ns < after and not any(start <= after and end >= before for start, end in work)


def _stall_label(workload: Workload, of: Row, ns: int, *, number: int) -> str:
    axis = GROUPS[of.group].axis
    parts = [
        next((row for row in rows if row.kind == Kind.COLLECTIVE and _same(row, of)), None) for rows in workload.rows
    ]
    if None in parts:
        return f"exposed_transfer[{axis}]"
    transfer = min(part.end_ns - part.start_ns for part in parts if part is not None)
    rank_part = parts[number]
    assert rank_part is not None
    return f"exposed_{'wait' if ns < rank_part.end_ns - transfer else 'transfer'}[{axis}]"


def _same(row: Row, other: Row) -> bool:
    return (row.group, row.sequence) == (other.group, other.sequence)


@pytest.mark.slow
@given(workload=runs(actions=False))
@settings(max_examples=examples(250), deadline=None)
def test_each_ns_is_in_the_term_of_its_definition(workload: Workload) -> None:
    result = analyze(workload.timeline())
    assert_exact(result)
    for number in (0, 1):
        for at, expected in enumerate(labels(workload, number=number)):
            assert terms_of(result, number=number, at=at) == dict(expected)
            assert result.ledger.ranks[number].wall_ns[at] == expected.total()


@pytest.mark.slow
@given(workload=runs(actions=True))
@settings(max_examples=examples(250), deadline=None)
def test_with_a_pipeline_the_terms_still_sum_to_the_wall_time(workload: Workload) -> None:
    result = analyze(workload.timeline())
    assert_exact(result)
    kept = ("data_wait", "checkpoint_stall", "optimizer", "gc")
    without = analyze(
        Workload(rows=tuple([row for row in rows if row.kind != Kind.ACTION] for rows in workload.rows)).timeline()
    )
    for number in (0, 1):
        for at in (0, 1):
            now, before = terms_of(result, number=number, at=at), terms_of(without, number=number, at=at)
            gained = sum(max(now.get(term, 0) - before.get(term, 0), 0) for term in kept)
            walls = (analysis.ledger.ranks[number].wall_ns[at] for analysis in (result, without))
            # An action between two evaluations is training: their gap is then part of the step, with all its terms.
            assert gained <= next(walls) - next(walls)


def test_an_action_between_two_evaluations_keeps_their_gap_in_the_step() -> None:
    """The rank waits for data from 22 to 28, between evaluations of length 0 at 20 and 30.

    That is training only inside an action.
    """
    rows = [phase(Phase.EVALUATION, 20, 20), phase(Phase.DATA_WAIT, 22, 28), phase(Phase.EVALUATION, 30, 30)]
    outside = analyze(timeline(rank(0, step(0, 0, 100), *rows)))
    inside = analyze(timeline(rank(0, step(0, 0, 100), action("F", 10, 50, stage=0, microbatch=0), *rows)))
    assert (outside.ledger.wall_ns, outside.ledger.total("data_wait")) == (90, 0)
    assert (inside.ledger.wall_ns, inside.ledger.total("data_wait")) == (100, 6)


def test_a_pipeline_wait_inside_an_action_is_not_lost() -> None:
    """Both ranks stall for each other inside F. No schedule makes them wait there."""
    sent, receive = message("send", 20, 40, peer=1, group=1), message("recv", 20, 40, peer=0, group=1)
    first = rank(
        0, step(0, 0, 100), action("F", 10, 50, stage=0, microbatch=0), sent, stall(sent, 20, 40), groups=GROUPS
    )
    second = rank(
        1, step(0, 0, 100), action("F", 10, 50, stage=1, microbatch=0), receive, stall(receive, 20, 40), groups=GROUPS
    )
    result = analyze(timeline(first, second))
    assert_exact(result)
    assert "exposed_wait[pp]" not in result.ledger.order
