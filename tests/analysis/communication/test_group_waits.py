"""Waits in groups until the last member joins."""

from tests.analysis.lockstep import lockstep
from tests.timeline.build import collective, group, phase, rank, stall, step, timeline
from traincope.analysis import GroupWait, analyze
from traincope.analysis.communication.group_waits import group_waits
from traincope.events import Phase


def test_early_ranks_wait_in_the_counted_steps() -> None:
    """Rank 1 takes 90 instead of 60 in three steps; the first is the warm-up: 2 x 30."""
    analysis = analyze(timeline(*lockstep([[60, 90, 60]] * 3, transfer_ns=10)))
    assert analysis.group_waits == (GroupWait(axis="dp", ranks=(0, 1, 2), waits_ns=(60, 0, 60)),)


def test_a_member_without_records_is_unknown_and_a_group_without_waits_is_absent() -> None:
    """Ranks 0 and 1 of three wait in tp; rank 2 has no record; in dp both arrive together."""
    tp, dp = group("tp", 0, 1), group("dp", 0, 1, 2)
    rows = []
    for number, begin in ((0, 20), (1, 50)):
        gather = [collective(at + begin, at + 60, sequence=at // 100, at=at // 100) for at in (0, 100)]
        stalls = [stall(call, call.start_ns, call.end_ns) for call in gather]
        work = [phase(Phase.FORWARD, at, at + begin, at=at // 100) for at in (0, 100)]
        steps = [step(0, 0, 100), step(1, 100, 200)]
        rows.append(rank(number, *steps, *work, *gather, *stalls, groups=[tp, dp]))
    analysis = analyze(timeline(*rows, world_size=3))
    assert analysis.group_waits == (GroupWait(axis="tp", ranks=(0, 1), waits_ns=(30, 0)),)


def test_a_pipeline_rank_without_records_is_unknown() -> None:
    """The last rank of a pipeline of three has no record; messages between the others count."""
    pipeline = group("pp", 0, 1, 2, key="pipe")
    line = timeline(*(rank(at, step(0, 0, 100), groups=[pipeline]) for at in (0, 1)), world_size=3)
    waited: dict[int, dict[str, int]] = {0: {}, 1: {"pipe": 40}}
    assert group_waits(line, waited) == (GroupWait(axis="pp", ranks=(0, 1, 2), waits_ns=(0, 40, None)),)
