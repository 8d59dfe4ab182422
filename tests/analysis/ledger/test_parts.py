"""Parts of a step that are not training own all that happens inside, and show what that is."""

from dataclasses import replace

from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, analyze
from traincope.analysis.verdict.findings import FindingKind
from traincope.analysis.verdict.losses.term_causes import TermCauses, term_causes
from traincope.events import Phase

GROUPS = (group("dp", 0, 1),)
MS = 1_000_000


def scored(*, late: int) -> Analysis:
    """Both ranks score in [20, 80] and gather their rewards: rank 1 joins at `late`, the wire takes 5."""
    ranks = []
    for number, begin in ((0, 30), (1, late)):
        call = collective(begin, late + 5)
        rows = (phase(Phase.REWARD, 20, 80), call, stall(call, begin, late + 5), phase(Phase.FORWARD, 80, 100))
        ranks.append(rank(number, step(0, 0, 100), *rows, groups=GROUPS))
    return analyze(timeline(*ranks))


def causes(analysis: Analysis, term: str) -> TermCauses | None:
    return next((each for each in term_causes(analysis) if each.terms == (term,)), None)


def test_a_part_contains_its_waits_and_shows_them() -> None:
    analysis = scored(late=70)
    assert (analysis.ledger.total("reward"), analysis.ledger.total("exposed_wait[dp]")) == (120, None)
    inside = causes(analysis, "reward")
    assert inside is not None
    assert {cause.subject: cause.ns for cause in inside.causes} == {"exposed_wait[dp]": 40, "exposed_transfer[dp]": 10}
    assert inside.rest_ns == 70


def test_a_wait_in_a_part_is_not_the_ranks_own_work() -> None:
    """Rank 0 waits for 40 of its 60 in the part, so rank 1 is the one that takes longer."""
    first, second = scored(late=70).ledger.ranks
    own = [ledger.own("reward") for ledger in (first, second)]
    assert [int(ns[0]) for ns in own if ns is not None] == [15, 55]
    assert [int(ledger.waits_inside_ns[0]) for ledger in (first, second)] == [40, 0]


def named(row: Row, name: str) -> Row:
    return replace(row, name=name)


def test_a_part_with_a_name_of_the_trainings_own_is_a_term() -> None:
    rows = (named(phase(Phase.NAMED, 10, 40), "play [1]"), phase(Phase.FORWARD, 20, 30), phase(Phase.FORWARD, 40, 50))
    ledger = analyze(timeline(rank(0, step(0, 0, 100), *rows), rank(1, step(0, 0, 100)))).ledger
    assert [each.total("span.play [1]") for each in ledger.ranks] == [30, 0]
    assert (ledger.total("forward"), ledger.order[-2:]) == (10, ("span.play [1]", "unattributed"))
    assert "span.play [1]" in ledger.every_step


def test_a_run_without_parts_lists_none() -> None:
    order = analyze(timeline(rank(0, step(0, 0, 100)))).ledger.order
    assert not {"generate", "reward", "environment"} & {*order}


def test_a_rollout_in_evaluation_mode_is_part_of_its_step() -> None:
    """The second evaluation is the training's own."""
    rows = (phase(Phase.GENERATE, 10, 50), phase(Phase.EVALUATION, 20, 40), phase(Phase.EVALUATION, 60, 70))
    ledger = analyze(timeline(rank(0, step(0, 0, 100), *rows))).ledger
    assert (ledger.total("generate"), ledger.evaluation_ns, ledger.wall_ns) == (40, 10, 90)


def test_the_innermost_part_owns_the_time() -> None:
    rows = (phase(Phase.GENERATE, 10, 50), phase(Phase.WEIGHT_SYNC, 20, 30))
    ledger = analyze(timeline(rank(0, step(0, 0, 100), *rows))).ledger
    assert (ledger.total("generate"), ledger.total("weight_sync")) == (30, 10)


def test_a_rank_whose_part_takes_longer_is_named_with_the_part() -> None:
    """80 steps of 200: rank 1 scores for 100, rank 0 for 20, and waits for it 80."""
    ranks: list[list[Row]] = [[], []]
    for number in range(80):
        begin = 200 * MS * number
        for rows, own in zip(ranks, (20 * MS, 100 * MS), strict=True):
            call = collective(begin + own, begin + 101 * MS, sequence=number, at=number)
            rows += [
                step(number, begin, begin + 200 * MS),
                phase(Phase.REWARD, begin, begin + 101 * MS, at=number),
                call,
                stall(call, begin + own, begin + 101 * MS),
                phase(Phase.FORWARD, begin + 101 * MS, begin + 200 * MS, at=number),
            ]
    analysis = analyze(timeline(*(rank(number, *rows, groups=GROUPS) for number, rows in enumerate(ranks))))
    first = analysis.verdict[0]
    assert (first.kind, first.ranks) == (FindingKind.STRAGGLER, (1,))
    assert "reward takes 100.0 ms on rank 1, 20.0 ms on the others" in first.evidence
    assert first.advice.startswith(
        "`traincope profile RUN --stacks 1 0` names the line while it trains. Give every rank"
    )
