"""Windows that one rank begins before a collective, and the others after it."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, message, rank, stall, timeline
from traincope.analysis import FaultKind, analyze
from traincope.events import Kind
from traincope.store import RankRecords
from traincope.timeline.collectives.instances import Instances, match_instances

STEPS = 6
STEPS_A_WINDOW = 2
DP = group("dp", 0, 1, 2)


def reader(number: int, *, first_step: int = 0, offset: int = 0, left_out: int | None = None) -> list[Row]:
    """A scatter of rank 0's batch and an all-reduce in each step. Its step begins with the batch, the others' after it.

    A step is 100 long: the scatter at 10, the all-reduce at 50. `offset`: collectives of an earlier training.
    """
    calls = [(100 * step + at, name) for step in range(STEPS) for at, name in ((10, "scatter"), (50, "all_reduce"))]
    counts: dict[int, int] = {}
    rows: list[Row] = []
    for count, (start, name) in enumerate(calls):
        begun = start if number == 0 else max(start - 20, 0)
        window = begun // (100 * STEPS_A_WINDOW) * STEPS_A_WINDOW
        if count == left_out or window < first_step:
            continue
        sequence = counts.get(window, 0)
        counts[window] = sequence + 1
        skipped = left_out is not None and count > left_out
        row = collective(start, start + 5, name=name, sequence=sequence, at=start // 100)
        torch_count = 1 + offset + count - skipped if not sequence else 0
        rows += [replace(row, window=window, tag=torch_count), replace(stall(row, start, start + 5), window=window)]
    return rows


def matched(*ranks: list[Row]) -> Instances:
    return match_instances(timeline(*(records(number, rows) for number, rows in enumerate(ranks))))


def records(number: int, rows: list[Row]) -> RankRecords:
    return rank(number, *rows, groups=[DP])


@pytest.mark.parametrize(("first_step", "offset"), [(0, 0), (0, 40), (2, 0)])
def test_calls_are_matched_by_torchs_counts_where_one_rank_sees_the_border_earlier(
    first_step: int, offset: int
) -> None:
    """`first_step`: older records are gone. `offset`: rank 0 had more collectives in an earlier training."""
    readers = (reader(number, first_step=first_step, offset=offset * (number == 0)) for number in range(3))
    result = matched(*readers)
    whole = 2 * (STEPS - first_step)
    assert result.complete.sum() >= whole - 1
    assert result.num_shifted == 0
    times = result.parts.start_ns
    for instance in result.complete.nonzero()[0]:
        assert len(set(times[result.number == instance].tolist())) == 1


def test_no_mismatch_is_reported_for_it() -> None:
    result = analyze(timeline(*(records(number, reader(number)) for number in range(3))))
    assert FaultKind.MISMATCH not in [fault.kind for fault in result.faults]


def test_stalls_keep_their_collectives() -> None:
    built = timeline(*(records(number, reader(number)) for number in range(3)))
    result = match_instances(built)
    for each in built.ranks:
        stalls, calls = (each.main[each.main["kind"] == kind] for kind in (Kind.STALL, Kind.COLLECTIVE))
        assert result.find(each, stalls).tolist() == result.find(each, calls).tolist()


def test_a_collective_that_a_rank_leaves_out_moves_no_call() -> None:
    """Torch's counts differ from there on too, but the operations of later windows agree by the counts in them."""
    alike = [[*reader(0, left_out=4 if number == 1 else None)] for number in range(3)]
    result = matched(*alike)
    assert result.num_shifted > 0


def test_torchs_counts_are_not_used_on_a_group_with_messages() -> None:
    sent = message("send", 0, 5, peer=1)
    result = matched([sent, *reader(0)], reader(1), reader(2))
    assert result.complete.sum() < 2 * STEPS - 1
