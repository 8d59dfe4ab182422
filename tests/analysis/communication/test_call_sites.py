"""Call sites of collectives, and their sums."""

from dataclasses import replace

from tests.timeline.build import Row, action, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import CallSite, all_calls, analyze
from traincope.events import Kind, Phase
from traincope.store import RankRecords


def block(name: str, start_ns: int, end_ns: int) -> Row:
    """Forward of a block."""
    return Row(kind=Kind.SPAN, phase=Phase.FORWARD, name=name, start_ns=start_ns, end_ns=end_ns)


def one_step(number: int, *, first_gather: int) -> list[Row]:
    """Record 100 ns: a gather in the first block, a hidden one in the second, and one outside all intervals."""
    begin, counted = 100 * number, 3 * number
    gathers = [
        collective(begin + start, begin + end, sequence=counted + at, at=number)
        for at, (start, end) in enumerate(((first_gather, 20), (35, 50), (75, 85)))
    ]
    stall_totals = stall(gathers[0], begin + max(first_gather, 12), begin + 20)
    return [
        step(number, begin, begin + 100),
        phase(Phase.FORWARD, begin, begin + 60, at=number),
        block("layers.0 (Block)", begin + 5, begin + 30),
        block("layers.1 (Block)", begin + 30, begin + 55),
        *gathers,
        stall_totals,
    ]


def records(number: int, *, first_gather: int, counted: int = 1) -> RankRecords:
    """Record the warm-up and the counted steps."""
    rows = [row for at in range(counted + 1) for row in one_step(at, first_gather=first_gather)]
    return rank(number, *rows, groups=[group("fsdp", 0, 1)])


def test_the_place_of_a_call_is_the_innermost_block_also_without_a_wait() -> None:
    """Rank 1 joins the first gather 4 ns later: 6 ns of transfer. Rank 0 stalls from 12 on."""
    result = analyze(timeline(records(0, first_gather=10), records(1, first_gather=14)))
    hidden = CallSite("fsdp", "all_gather", "forward layers.1 (Block)", transfer_ns=15, wait_ns=0, exposed_ns=0)
    outside = CallSite("fsdp", "all_gather", "", transfer_ns=10, wait_ns=0, exposed_ns=0)
    first = "fsdp", "all_gather", "forward layers.0 (Block)"
    assert [(each.num_steps, each.in_blocks) for each in result.calls] == [(1, True), (1, True)]
    assert [set(each.calls) for each in result.calls] == [
        {CallSite(*first, 6, 2, 8), hidden, outside},
        {CallSite(*first, 6, 0, 6), hidden, outside},
    ]
    assert CallSite(*first, 12, 2, 14) in all_calls(result.calls)
    (all_gather,) = result.comm
    sums = [sum(ns) for ns in zip(*(call[3:6] for call in all_calls(result.calls)), strict=True)]
    assert sums == [all_gather.transfer_ns, all_gather.wait_ns, all_gather.exposed_ns]


def test_a_place_has_the_sums_of_all_its_calls() -> None:
    """Two steps: twice as long as one, and twice as many bytes, messages and visits."""
    once, twice = (
        analyze(timeline(*(records(number, first_gather=10 + 4 * number, counted=counted) for number in (0, 1))))
        for counted in (1, 2)
    )
    assert {call[:3]: call[3:] for call in all_calls(twice.calls)} == {
        call[:3]: tuple(2 * ns for ns in call[3:]) for call in all_calls(once.calls)
    }
    one, two = (next(sent for sent in each.calls[0].messages if sent.phase is Phase.FORWARD) for each in (once, twice))
    assert one.num_messages == one.visits == 1
    assert two == one._replace(
        num_messages=2,
        num_bytes=2 * one.num_bytes,
        visits=2,
        **{name: 2 * getattr(one, name) for name in ("transfer_ns", "wait_ns", "exposed_ns")},
    )


def test_the_place_without_blocks_is_a_phase_or_action_of_the_calling_or_training_thread() -> None:
    """Autograd's own thread records only the call, as on a GPU."""
    rows = [step(0, 0, 100), step(1, 100, 200), phase(Phase.BACKWARD, 150, 200, at=1)]
    in_action = collective(110, 120, sequence=0, at=1)
    in_backward = replace(collective(160, 190, name="all_reduce", sequence=1, at=1), thread="autograd")
    rows += [action("F", 105, 140, stage=0, microbatch=0, at=1), in_action, in_backward]
    result = analyze(timeline(rank(0, *rows, groups=[group("dp", 0)])))
    (only,) = result.calls
    assert not only.in_blocks
    assert only.calls == (
        CallSite("dp", "all_gather", "F", 10, 0, 0),
        CallSite("dp", "all_reduce", "backward", 30, 0, 0),
    )
