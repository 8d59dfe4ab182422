"""Mismatched collectives in runs made by hand: both sides, and the culprits as far as a reference decides."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.faults.hangs.test_stops import WAITING, looked
from tests.seeds import seeds
from tests.timeline.build import Row, collective, group, message, phase, rank, run, step
from traincope.analysis import FaultKind, FindingKind, Hang, HangKind, analyze
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.hangs import mismatches
from traincope.analysis.faults.hangs.hang import Differs
from traincope.analysis.faults.hangs.hangs import completed_mismatches
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.store import RankRecords
from traincope.timeline import build_timeline
from traincope.topology import Group

MS = 1_000_000
STEP_NS = 100 * MS
NUM_STEPS = 6
END_NS = NUM_STEPS * STEP_NS
BYTES = 4_096

Form = tuple[str, int]
"""Operation and bytes."""
ALIKE: Sequence[Form] = (("all_reduce", BYTES), ("all_gather", BYTES))


def training(
    number: int, forms: Mapping[int, Sequence[Form]] | None = None, *, groups: Sequence[Group], on: int = 0
) -> RankRecords:
    """A rank whose steps issue `ALIKE` on its n-th group, or the forms that are given for a step."""
    rows: list[Row] = []
    sequence = 0
    for at in range(NUM_STEPS):
        begin = at * STEP_NS
        rows.append(step(at, begin, begin + STEP_NS, flags=Flag.DETAILED))
        rows.append(phase(Phase.BACKWARD, begin + 5 * MS, begin + 90 * MS, at=at))
        for place, (name, num_bytes) in enumerate((forms or {}).get(at, ALIKE)):
            start = begin + (10 + 20 * place) * MS
            rows.append(
                collective(start, start + 9 * MS, name=name, group=on, sequence=sequence, at=at, num_bytes=num_bytes)
            )
            sequence += 1
    return rank(number, *rows, groups=groups)


def hangs(*ranks: RankRecords) -> tuple[Hang, ...]:
    return analyze(build_timeline(run(*ranks))).hangs


def only(*ranks: RankRecords) -> Hang:
    (hang,) = hangs(*ranks)
    return hang


def dp(size: int) -> list[Group]:
    return [group("dp", *range(size))]


def test_equal_collectives_are_no_mismatch() -> None:
    assert hangs(*(training(number, groups=dp(3)) for number in range(3))) == ()


@pytest.mark.parametrize("form", [("all_reduce", 2 * BYTES), ("broadcast", BYTES)])
def test_the_majority_is_the_reference(form: Form) -> None:
    """Ranks 0, 1 and 3 issue an all-reduce, rank 2 something else: found although nothing hangs."""
    other = {3: (form, ALIKE[1])}
    ranks = [training(number, other if number == 2 else None, groups=dp(4)) for number in range(4)]
    hang = only(*ranks)
    assert (hang.kind, hang.culprits, hang.victims) == (HangKind.MISMATCH, (2,), (0, 1, 3))
    assert (hang.axis, hang.step, hang.confidence, hang.lasted_ns) == ("dp", 3, HIGH, None)
    size = f"{form[0]} of {form[1]:,} bytes"
    assert f"ranks 0, 1, 3 issued all_reduce of 4,096 bytes in step 3, rank 2 issued {size} in step 3" in hang.evidence
    analysis = analyze(build_timeline(run(*ranks)))
    assert (analysis.verdict[0].kind, analysis.verdict[0].ranks) == (FindingKind.MISMATCH, (2,))
    assert [fault.ranks for fault in analysis.faults if fault.kind is FaultKind.MISMATCH] == [(2,)]


@pytest.mark.parametrize(("num_bytes", "differs"), [(8 * BYTES, Differs.SIZE), (2 * BYTES, Differs.OPERATION)])
def test_a_size_that_is_usual_elsewhere_in_the_step_is_another_collective(num_bytes: int, differs: Differs) -> None:
    """Each step reduces gradients of one size, then of another. In the last one, rank 2 begins with `num_bytes`."""
    usual = (("all_reduce", BYTES), ("all_reduce", 2 * BYTES))
    last = {NUM_STEPS - 1: (("all_reduce", num_bytes), usual[1])}
    ranks = [
        training(number, dict.fromkeys(range(NUM_STEPS), usual) | (last if number == 2 else {}), groups=dp(3))
        for number in range(3)
    ]
    ended = [looked(replace(each, info=replace(each.info, ending=None))) for each in ranks]
    hang = hangs(*ended)[0]
    assert (hang.kind, hang.culprits, hang.differs) == (HangKind.MISMATCH, (2,), differs)


@pytest.mark.parametrize(
    ("root", "num_bytes", "advice"),
    [
        (1, BYTES, "Let rank 2 name the root (src or dst) that the others name."),
        (0, 8 * BYTES, "Let rank 2 pass the size that the others pass"),
    ],
)
def test_the_advice_says_on_what_the_rank_must_agree(root: int, num_bytes: int, advice: str) -> None:
    """The broadcast of the last step does not complete."""

    def sender(number: int) -> RankRecords:
        rows = []
        for at in range(NUM_STEPS):
            begin, is_last = at * 100 * MS, at == NUM_STEPS - 1
            size, source = (num_bytes, root) if is_last and number == 2 else (BYTES, 0)
            end = OPEN if is_last else begin + 2 * MS
            sent = collective(begin + MS, end, name="broadcast", sequence=at, at=at, num_bytes=size)
            rows += [
                step(at, begin, OPEN if is_last else begin + 100 * MS, flags=Flag.DETAILED),
                replace(sent, peer=source),
            ]
        return looked(rank(number, *rows, groups=dp(3), ending=None), WAITING)

    first = analyze(build_timeline(run(*map(sender, range(3))))).verdict[0]
    assert (first.kind, first.ranks) == (FindingKind.MISMATCH, (2,))
    assert first.advice.startswith(advice)


@pytest.mark.parametrize("culprit", [0, 1])
def test_of_two_ranks_their_earlier_steps_decide(culprit: int) -> None:
    other = {4: (("reduce_scatter", BYTES), ALIKE[1])}
    hang = only(*(training(number, other if number == culprit else None, groups=dp(2)) for number in range(2)))
    assert (hang.culprits, hang.confidence) == ((culprit,), MEDIUM)
    assert hang.evidence.endswith("the others did the same as in their earlier steps")


def test_without_a_reference_both_are_suspects() -> None:
    """They disagree from their first collective on."""
    other = dict.fromkeys(range(NUM_STEPS), (("reduce_scatter", BYTES), ALIKE[1]))
    hang = only(training(0, groups=dp(2)), training(1, other, groups=dp(2)))
    assert (hang.culprits, hang.suspects, hang.confidence) == ((), (0, 1), UNKNOWN)


def test_another_group_of_the_axis_decides_if_nothing_earlier_does() -> None:
    """Two groups of the axis dp: in the first step, rank 1 differs from rank 0 and from both ranks of the other."""
    other = dict.fromkeys(range(NUM_STEPS), (("reduce_scatter", BYTES), ALIKE[1]))
    first, second = [group("dp", 0, 1)], [group("dp", 2, 3)]
    ranks = [training(0, groups=first), training(1, other, groups=first)]
    hang = only(*ranks, *(training(number, groups=second) for number in (2, 3)))
    assert (hang.culprits, hang.confidence) == ((1,), MEDIUM)


@pytest.mark.parametrize("size", [2, 4])
def test_a_skipped_collective_of_equal_form_shifts_one_rank(size: int) -> None:
    """Nothing hangs and no form differs: from step 2 on, rank 1 is one all-reduce behind."""
    forms: Sequence[Form] = (("all_reduce", BYTES),) * 3
    all_steps = dict.fromkeys(range(NUM_STEPS), forms)
    ranks = [
        training(number, {**all_steps, 2: forms[:2]} if number == 1 else all_steps, groups=dp(size))
        for number in range(size)
    ]
    hang = only(*ranks)
    assert (hang.kind, hang.culprits, hang.step, hang.confidence) == (HangKind.MISMATCH, (1,), 2, MEDIUM)


def test_records_that_only_one_member_still_has_are_no_mismatch() -> None:
    """A live reader holds different first records of a window for each rank, and members see a border apart."""
    records = training(1, groups=dp(2))
    (segment,) = records.segments
    moved = segment.records.copy()
    moved["step"][(moved["step"] == 2) & (moved["sequence"] == 5)] = 3
    kept = moved[(moved["kind"] != Kind.COLLECTIVE) | (moved["sequence"] >= 3)]
    held = replace(records, segments=(replace(segment, records=kept),))
    assert hangs(training(0, groups=dp(2)), held) == ()


@pytest.mark.parametrize("name", ["all_to_all", "gather", "scatter"])
def test_operations_whose_sizes_may_differ_are_no_mismatch(name: str) -> None:
    ranks = [
        training(number, dict.fromkeys(range(NUM_STEPS), ((name, BYTES * (1 + number)),)), groups=dp(3))
        for number in range(3)
    ]
    assert hangs(*ranks) == ()


def test_messages_are_no_mismatch() -> None:
    """A send and its receive are different operations of the same message."""
    pair = dp(2)
    steps = [step(at, at * STEP_NS, (at + 1) * STEP_NS, flags=Flag.DETAILED) for at in range(NUM_STEPS)]
    sends = [message("send", at * STEP_NS + MS, at * STEP_NS + 2 * MS, peer=1, sequence=at, at=at) for at in range(6)]
    receives = [
        message("recv", at * STEP_NS + MS, at * STEP_NS + 2 * MS, peer=0, sequence=at, at=at) for at in range(6)
    ]
    assert hangs(rank(0, *steps, *sends, groups=pair), rank(1, *steps, *receives, groups=pair)) == ()


def test_a_step_border_that_members_see_apart_is_no_mismatch() -> None:
    """One collective at a border falls into the next step on one rank only, and the counts agree after it."""
    records = training(1, groups=dp(2))
    (segment,) = records.segments
    moved = segment.records.copy()
    moved["step"][(moved["step"] == 2) & (moved["sequence"] == 5)] = 3
    shifted = replace(records, segments=(replace(segment, records=moved),))
    assert hangs(training(0, groups=dp(2)), shifted) == ()


def test_borders_that_members_see_apart_in_two_steps_are_no_mismatch() -> None:
    """The counts of rank 1 are ahead up to steps 1 and 2, and equal from step 3 on."""
    records = training(1, groups=dp(2))
    (segment,) = records.segments
    moved = segment.records.copy()
    for at, sequence in ((2, 4), (3, 6)):
        moved["step"][(moved["kind"] == Kind.COLLECTIVE) & (moved["sequence"] == sequence)] = at - 1
    early = replace(records, segments=(replace(segment, records=moved),))
    assert hangs(training(0, groups=dp(2)), early) == ()


def test_a_border_that_members_always_see_apart_is_no_mismatch() -> None:
    records = training(1, groups=dp(2))
    (segment,) = records.segments
    moved = segment.records.copy()
    moved["step"][(moved["kind"] == Kind.COLLECTIVE) & (moved["sequence"] % 2 == 1)] += 1
    apart = replace(records, segments=(replace(segment, records=moved),))
    assert hangs(training(0, groups=dp(2)), apart) == ()


@pytest.mark.parametrize("size", [2, 4])
def test_a_dropped_record_is_no_skipped_collective(size: int) -> None:
    forms: Sequence[Form] = (("all_reduce", BYTES),) * 3
    ranks = [training(number, dict.fromkeys(range(NUM_STEPS), forms), groups=dp(size)) for number in range(size)]
    (segment,) = ranks[1].segments
    kept = segment.records[(segment.records["kind"] != Kind.COLLECTIVE) | (segment.records["sequence"] != 7)]
    ranks[1] = replace(ranks[1], segments=(replace(segment, records=kept),))
    assert hangs(*(looked(replace(each, info=replace(each.info, ending=None)), at_ns=END_NS) for each in ranks)) == ()


def disturbed(records: RankRecords, draw: np.random.Generator) -> RankRecords:
    """The same with up to two changes: another size, root, step, window or operation, no end, or a lost record."""
    (segment,) = records.segments
    changed = segment.records.copy()
    for at in draw.choice(np.flatnonzero(changed["kind"] == Kind.COLLECTIVE), draw.integers(3), replace=False):
        column, by = [("value", 8), ("peer", 1), ("step", 1), ("step", -1), ("window", 1), ("name", 1)][
            draw.integers(6)
        ]
        changed[column][at] += by
        changed["end_ns"][at] = OPEN if draw.random() < 0.1 else changed["end_ns"][at]
    kept = draw.random(len(changed)) > (0.02 if draw.random() < 0.2 else 0.0)
    return replace(records, segments=(replace(segment, records=changed[kept]),))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(60))
def test_windows_that_columns_rule_out_have_no_mismatch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks with some changes, and steps whose number of collectives is drawn: with and without the columns."""
    draw = np.random.default_rng(seed)
    same = {at: ALIKE * int(draw.integers(1, 3)) for at in range(NUM_STEPS)}
    skip = {**same, int(draw.integers(NUM_STEPS)): ALIKE[:1]}
    forms = [skip if draw.random() < 0.3 else same for _ in range(3)]
    ranks = [disturbed(training(number, of, groups=dp(3)), draw) for number, of in enumerate(forms)]
    timeline = build_timeline(run(*ranks))
    by_columns = list(completed_mismatches(timeline))
    monkeypatch.setattr(mismatches, "_may_disagree", lambda *_: True)
    assert by_columns == list(completed_mismatches(timeline))
