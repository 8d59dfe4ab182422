"""The critical path of runs small enough to be walked by hand, from the end of a step to its begin."""

from random import Random

import pytest

from tests.analysis.lockstep import lockstep
from tests.analysis.test_random_runs import made
from tests.timeline.build import Row, collective, group, message, phase, rank, stall, step, timeline
from tests.truth.on_paper import recorded, wired
from tests.truth.playing import truth, wall_ns
from tests.truth.scripted import Scripted
from tests.truth.workloads import MS, WORKLOADS, Workload
from traincope.analysis import Analysis, CriticalPath, analyze
from traincope.events import Flag, Phase
from traincope.timeline import build_timeline

BOTH = group("fsdp", 0, 1)
PIPE = group("pp", 0, 1)
WIRE = (0, "exposed_transfer[dp]")
NAMED = {workload.name: workload for workload in WORKLOADS}


def path_of(found: Analysis) -> CriticalPath:
    assert found.critical_path is not None
    return found.critical_path


def walked(*rows: list[Row]) -> list[tuple[int, str, int, int]]:
    """The path of the only step of ranks that recorded these."""
    groups = [BOTH, PIPE]
    path = path_of(analyze(timeline(*(rank(number, *own, groups=groups) for number, own in enumerate(rows)))))
    assert path.reason is None
    (only,) = path.steps
    assert only.wall_ns <= max(own[0].end_ns - own[0].start_ns for own in rows)
    return [tuple(segment) for segment in only.segments]  # type: ignore[misc]


def test_the_path_goes_over_to_the_rank_that_was_waited_for_when_it_joined() -> None:
    """Rank 1 joins at 70, 30 on the wire, and 20 more of work on rank 0, which ends last."""
    early, late = collective(40, 100), collective(70, 100)
    first = [
        step(0, 0, 120),
        phase(Phase.FORWARD, 0, 40),
        early,
        stall(early, 40, 100),
        phase(Phase.BACKWARD, 100, 120),
    ]
    second = [step(0, 0, 105), phase(Phase.FORWARD, 5, 70), late, stall(late, 70, 100)]
    assert walked(first, second) == [
        (1, "unattributed", 0, 5),
        (1, "forward", 5, 70),
        (0, "exposed_transfer[fsdp]", 70, 100),
        (0, "backward", 100, 120),
    ]


def test_work_beside_a_transfer_that_ends_later_is_not_on_the_path() -> None:
    """Both begin it at 50 and compute until 80; that could end at 100 all the same."""
    call = collective(50, 100)
    own = [step(0, 0, 100), phase(Phase.FORWARD, 0, 80), call, stall(call, 80, 100)]
    assert walked(own, own) == [(0, "forward", 0, 50), (0, "exposed_transfer[fsdp]", 50, 100)]


def test_a_transfer_that_ended_before_the_work_beside_it_is_not_on_the_path() -> None:
    call = collective(50, 81, flags=Flag.DONE_BEFORE_WAIT)
    own = [step(0, 0, 100), phase(Phase.FORWARD, 0, 80), call, stall(call, 80, 81), phase(Phase.BACKWARD, 81, 100)]
    assert walked(own, own) == [
        (0, "forward", 0, 80),
        (0, "exposed_transfer[fsdp]", 80, 81),
        (0, "backward", 81, 100),
    ]


def test_a_message_leads_to_its_sender_and_not_back_from_it() -> None:
    """Sent at 60, there at 70. The sender looks after its message at 90 only: for that it waited not at all."""
    got, sent = message("recv", 10, 70, peer=1, group=1), message("send", 60, 91, peer=0, group=1)
    first = [step(0, 0, 100), got, stall(got, 10, 70), phase(Phase.FORWARD, 70, 90)]
    second = [step(0, 0, 100), phase(Phase.FORWARD, 0, 60), sent, phase(Phase.BACKWARD, 60, 90), stall(sent, 90, 91)]
    assert walked(first, [*second[:-1]]) == [
        (1, "forward", 0, 60),
        (0, "exposed_transfer[pp]", 60, 70),
        (0, "forward", 70, 90),
        (0, "unattributed", 90, 100),
    ]
    ends_last = [step(0, 0, 101), *second[1:]]
    assert walked(first, ends_last) == [
        (1, "forward", 0, 60),
        (1, "backward", 60, 90),
        (1, "exposed_transfer[pp]", 90, 91),
        (1, "unattributed", 91, 101),
    ]


def test_a_send_that_is_done_before_its_receiver_looks_waited_for_nobody() -> None:
    """The receiver posts at 60 what was sent by 40."""
    sent, got = message("send", 20, 40, peer=1, group=1), message("recv", 60, 62, peer=0, group=1)
    first = [step(0, 0, 100), phase(Phase.FORWARD, 0, 20), sent, stall(sent, 20, 40), phase(Phase.BACKWARD, 40, 100)]
    second = [step(0, 0, 90), phase(Phase.FORWARD, 0, 60), got, stall(got, 60, 62)]
    assert walked(first, second) == [
        (0, "forward", 0, 20),
        (0, "exposed_transfer[pp]", 20, 40),
        (0, "backward", 40, 100),
    ]


def test_whose_end_nobody_saw_leads_to_the_rank_that_joined_meanwhile_all_the_same() -> None:
    """So DDP's own broadcasts are recorded, for which C++ waits: rank 0 comes at 80 and sends to rank 1."""
    early = collective(10, 84, name="broadcast", flags=Flag.DONE_BEFORE_WAIT)
    late = collective(80, 83, name="broadcast", flags=Flag.DONE_BEFORE_WAIT)
    first = [step(0, 0, 95), phase(Phase.DATA_WAIT, 0, 80), late]
    second = [step(0, 0, 100), early, stall(early, 10, 84), phase(Phase.FORWARD, 84, 100)]
    assert walked(first, second) == [
        (0, "data_wait", 0, 80),
        (1, "exposed_transfer[fsdp]", 80, 84),
        (1, "forward", 84, 100),
    ]


def test_a_step_begins_with_the_last_rank_that_begins_it() -> None:
    """From 30, when rank 1 begins, to 100, when rank 0 ends: less than either took."""
    early, late = collective(60, 90), collective(80, 90)
    first = [step(0, 0, 100), phase(Phase.FORWARD, 0, 60), early, stall(early, 60, 90)]
    second = [step(0, 30, 95), phase(Phase.FORWARD, 30, 80), late, stall(late, 80, 90)]
    assert walked(first, second) == [
        (1, "forward", 30, 80),
        (0, "exposed_transfer[fsdp]", 80, 90),
        (0, "unattributed", 90, 100),
    ]


def test_what_cannot_be_split_stays_on_its_rank_and_is_told() -> None:
    """The peer left no record of the all-gather."""
    call = collective(40, 100)
    alone = [step(0, 0, 100), phase(Phase.FORWARD, 0, 40), call, stall(call, 40, 100)]
    peer = [step(0, 0, 100), phase(Phase.FORWARD, 0, 99)]
    path = path_of(analyze(timeline(*(rank(at, *own, groups=[BOTH]) for at, own in enumerate((alone, peer))))))
    assert path.shares() == {(0, "exposed_transfer[fsdp]"): 60, (0, "forward"): 40}
    assert path.untold_ns == 60


def test_an_evaluation_is_on_the_path_and_in_no_sum() -> None:
    alone = [step(0, 0, 100), phase(Phase.FORWARD, 0, 40), phase(Phase.EVALUATION, 50, 90)]
    (only,) = path_of(analyze(timeline(rank(0, *alone)))).steps
    assert [segment.term for segment in only.segments] == ["forward", "unattributed", "evaluation", "unattributed"]
    assert (only.end_ns - only.start_ns, only.wall_ns) == (100, 60)


def test_records_that_contradict_each_other_end_in_a_wait() -> None:
    """At 70 each rank stands still for a collective that the other joins at 70 only, which then stands still too."""
    groups = [BOTH, group("dp", 0, 1)]
    rows = []
    for number in (0, 1):
        stood, joined = collective(20, 100, group=number), collective(70, 100, group=1 - number)
        rows.append([step(0, 0, 100), stood, stall(stood, 20, 100), joined])
    (only,) = path_of(analyze(timeline(*(rank(at, *own, groups=groups) for at, own in enumerate(rows))))).steps
    assert [tuple(segment) for segment in only.segments] == [
        (1, "unattributed", 0, 20),
        (1, "exposed_wait[dp]", 20, 70),
        (0, "exposed_transfer[fsdp]", 70, 100),
    ]


def test_without_a_common_clock_there_is_no_path_but_a_reason() -> None:
    ranks = [rank(at, step(0, 0, 100), groups=[BOTH], boot_id=f"boot-{at}") for at in (0, 1)]
    path = path_of(analyze(timeline(*ranks)))
    assert (path.steps, path.clock_error_ns) == ((), None)
    assert path.reason == "nothing says how far the clocks of its hosts are from each other"


def test_over_steps_the_shares_are_those_who_were_late_in_each() -> None:
    """Step 0 warms up; then rank 1 is late twice and rank 0 once."""
    work = [(50, 50), (50, 80), (50, 90), (70, 50)]
    path = path_of(analyze(timeline(*lockstep(work, transfer_ns=10))))
    assert path.shares() == {
        (1, "forward"): 80 + 90,
        (0, "forward"): 70,
        (0, "exposed_transfer[dp]"): 30,
    }
    assert [one.wall_ns for one in path.steps] == [90, 100, 80]
    assert path.median_step.number == 1


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        (
            "ddp: slow link, rank 0 late",
            {(0, "unattributed"): 80, (0, "forward"): 200, (0, "backward"): 300, (0, "exposed_transfer[dp]"): 60},
        ),
        ("async: partly hidden", {(1, "forward"): 320, (1, "backward"): 300}),
        (
            "tp: slow link, rank 0 slow",
            {(0, "forward"): 280, (0, "backward"): 300, (0, "exposed_transfer[tp]"): 80},
        ),
        ("ddp: slow loader of rank 1", {(1, "data_wait"): 90, (1, "forward"): 200, (1, "backward"): 300, WIRE: 1}),
    ],
)
def test_of_known_workloads_it_is_what_their_slowest_rank_does(name: str, shares: dict[tuple[int, str], int]) -> None:
    path = path_of(analyze(recorded(wired(NAMED[name]), steps=4)))
    per_step = {key: ns / len(path.steps) / MS for key, ns in path.shares().items() if ns > len(path.steps)}
    assert per_step == pytest.approx(shares, abs=1e-3)


@pytest.mark.parametrize("workload", list(map(wired, WORKLOADS)), ids=lambda workload: workload.name)
def test_of_known_workloads_it_is_as_long_as_a_step(workload: Workload) -> None:
    path = path_of(analyze(recorded(workload, steps=5)))
    assert [step.wall_ns for step in path.steps] == [max(map(wall_ns, truth(workload)))] * 4


def assert_tiled(found: Analysis) -> int:
    """Returns how often the path changes rank."""
    path, hops = path_of(found), 0
    took = {(rank.rank, one.number): one.length_ns for rank in found.timeline.ranks for one in rank.steps}
    for one in path.steps:
        pairs = list(zip(one.segments, one.segments[1:], strict=False))
        assert all(before.end_ns == after.start_ns for before, after in pairs)
        assert all((before.rank, before.term) != (after.rank, after.term) for before, after in pairs)
        assert all(segment.length_ns > 0 for segment in one.segments)
        assert one.end_ns - one.start_ns <= max(ns for (_, number), ns in took.items() if number == one.number)
        hops += sum(before.rank != after.rank for before, after in pairs)
    assert sum(path.shares().values()) == path.wall_ns
    return hops


@pytest.mark.parametrize("seed", range(15))
def test_whatever_was_recorded_the_segments_tile_a_step_no_longer_than_its_ranks_took(seed: int) -> None:
    found = analyze(build_timeline(made(Random(seed))))
    if found.critical_path is not None:
        assert_tiled(found)


def test_in_random_workloads_the_path_goes_from_rank_to_rank_and_waits_for_nobody() -> None:
    hops = 0
    for seed in range(15):
        found = analyze(recorded(Scripted(name="random", seed=seed), steps=3))
        hops += assert_tiled(found)
        assert not any(term.startswith("exposed_wait") for _, term in path_of(found).shares())
    assert hops > 30


def test_of_very_many_steps_evenly_spread_ones_are_walked_the_last_among_them() -> None:
    """2,501 steps count after the warm-up: every third."""
    path = path_of(analyze(timeline(*lockstep([(50, 50)] * 2_502, transfer_ns=10))))
    assert len(path.steps) == 834
    assert [path.steps[0].number, path.steps[1].number, path.steps[-1].number] == [2, 5, 2_501]
