"""Critical paths of runs that are small enough to follow by hand."""

from random import Random

import pytest

from evaluation.truth.trainings.on_paper import recorded, wired
from evaluation.truth.trainings.playing import truth, wall_ns
from evaluation.truth.trainings.scripted import Scripted
from evaluation.truth.trainings.workloads import MS, WORKLOADS, Workload
from tests.analysis.lockstep import lockstep
from tests.analysis.test_random_runs import random_run
from tests.seeds import seeds
from tests.timeline.build import Row, collective, group, message, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, CriticalPath, analyze
from traincope.events import Flag, Phase
from traincope.timeline import build_timeline

BOTH = group("fsdp", 0, 1)
PIPE = group("pp", 0, 1)
WIRE = (0, "exposed_transfer[dp]")
NAMED = {workload.name: workload for workload in WORKLOADS}


def path_of(analysis: Analysis) -> CriticalPath:
    assert analysis.critical_path is not None
    return analysis.critical_path


def walked(*rows: list[Row]) -> list[tuple[int, str, int, int]]:
    """Return the path of the only step of ranks with these records."""
    groups = [BOTH, PIPE]
    path = path_of(
        analyze(timeline(*(rank(number, *rank_rows, groups=groups) for number, rank_rows in enumerate(rows))))
    )
    assert path.reason is None
    (only,) = path.steps
    assert only.wall_ns <= max(rank_rows[0].end_ns - rank_rows[0].start_ns for rank_rows in rows)
    return [tuple(segment) for segment in only.segments]  # type: ignore[misc]


def test_the_path_continues_on_the_last_rank_when_it_joined() -> None:
    """Rank 1 joins at 70; then 30 on the wire, and 20 of work on rank 0, which ends last."""
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


def test_work_during_a_transfer_that_ends_later_is_not_on_the_path() -> None:
    """Both begin it at 50 and compute until 80; it ends at 100 anyway."""
    call = collective(50, 100)
    rank_rows = [step(0, 0, 100), phase(Phase.FORWARD, 0, 80), call, stall(call, 80, 100)]
    assert walked(rank_rows, rank_rows) == [(0, "forward", 0, 50), (0, "exposed_transfer[fsdp]", 50, 100)]


def test_a_transfer_that_ends_before_concurrent_work_is_not_on_the_path() -> None:
    call = collective(50, 81, flags=Flag.DONE_BEFORE_WAIT)
    rank_rows = [
        step(0, 0, 100),
        phase(Phase.FORWARD, 0, 80),
        call,
        stall(call, 80, 81),
        phase(Phase.BACKWARD, 81, 100),
    ]
    assert walked(rank_rows, rank_rows) == [
        (0, "forward", 0, 80),
        (0, "exposed_transfer[fsdp]", 80, 81),
        (0, "backward", 81, 100),
    ]


def test_a_message_leads_to_its_sender_and_not_back_from_it() -> None:
    """The message is sent at 60 and arrives at 70. Its sender waits for it only at 90, after its end."""
    receive, sent = message("recv", 10, 70, peer=1, group=1), message("send", 60, 91, peer=0, group=1)
    first = [step(0, 0, 100), receive, stall(receive, 10, 70), phase(Phase.FORWARD, 70, 90)]
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


def test_a_send_that_ends_before_its_receive_waits_for_no_rank() -> None:
    """The receiver posts at 60 a message that was sent by 40."""
    sent, receive = message("send", 20, 40, peer=1, group=1), message("recv", 60, 62, peer=0, group=1)
    first = [step(0, 0, 100), phase(Phase.FORWARD, 0, 20), sent, stall(sent, 20, 40), phase(Phase.BACKWARD, 40, 100)]
    second = [step(0, 0, 90), phase(Phase.FORWARD, 0, 60), receive, stall(receive, 60, 62)]
    assert walked(first, second) == [
        (0, "forward", 0, 20),
        (0, "exposed_transfer[pp]", 20, 40),
        (0, "backward", 40, 100),
    ]


def test_a_collective_without_a_seen_end_leads_to_the_rank_that_joined_last() -> None:
    """DDP's own broadcasts are recorded so, because C++ waits for them: rank 0 joins at 80 and sends to rank 1."""
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
    """From 30, the begin of rank 1, to 100, the end of rank 0: shorter than on either rank."""
    early, late = collective(60, 90), collective(80, 90)
    first = [step(0, 0, 100), phase(Phase.FORWARD, 0, 60), early, stall(early, 60, 90)]
    second = [step(0, 30, 95), phase(Phase.FORWARD, 30, 80), late, stall(late, 80, 90)]
    assert walked(first, second) == [
        (1, "forward", 30, 80),
        (0, "exposed_transfer[fsdp]", 80, 90),
        (0, "unattributed", 90, 100),
    ]


def test_an_ambiguous_wait_stays_on_its_rank_and_is_summed() -> None:
    """The peer has no record of the all-gather."""
    call = collective(40, 100)
    alone = [step(0, 0, 100), phase(Phase.FORWARD, 0, 40), call, stall(call, 40, 100)]
    peer = [step(0, 0, 100), phase(Phase.FORWARD, 0, 99)]
    path = path_of(
        analyze(timeline(*(rank(at, *rank_rows, groups=[BOTH]) for at, rank_rows in enumerate((alone, peer)))))
    )
    assert path.shares() == {(0, "exposed_transfer[fsdp]"): 60, (0, "forward"): 40}
    assert path.untold_ns == 60


def test_an_evaluation_is_on_the_path_and_in_no_sum() -> None:
    alone = [step(0, 0, 100), phase(Phase.FORWARD, 0, 40), phase(Phase.EVALUATION, 50, 90)]
    (only,) = path_of(analyze(timeline(rank(0, *alone)))).steps
    assert [segment.term for segment in only.segments] == ["forward", "unattributed", "evaluation", "unattributed"]
    assert (only.end_ns - only.start_ns, only.wall_ns) == (100, 60)


def test_records_that_contradict_each_other_end_in_a_wait() -> None:
    """At 70 each rank stalls for a collective that the other joins only at 70, when it stalls too."""
    groups = [BOTH, group("dp", 0, 1)]
    rows = []
    for number in (0, 1):
        stalled, joined = collective(20, 100, group=number), collective(70, 100, group=1 - number)
        rows.append([step(0, 0, 100), stalled, stall(stalled, 20, 100), joined])
    (only,) = path_of(
        analyze(timeline(*(rank(at, *rank_rows, groups=groups) for at, rank_rows in enumerate(rows))))
    ).steps
    assert [tuple(segment) for segment in only.segments] == [
        (1, "unattributed", 0, 20),
        (1, "exposed_wait[dp]", 20, 70),
        (0, "exposed_transfer[fsdp]", 70, 100),
    ]


def test_a_run_without_a_common_clock_has_a_reason_and_no_path() -> None:
    ranks = [rank(at, step(0, 0, 100), groups=[BOTH], boot_id=f"boot-{at}") for at in (0, 1)]
    path = path_of(analyze(timeline(*ranks)))
    assert (path.steps, path.clock_error_ns) == ((), None)
    assert path.reason == "the error between the clocks of its hosts is unknown"


def test_shares_over_steps_are_those_of_each_steps_late_rank() -> None:
    """Step 0 is the warm-up; then rank 1 is late twice and rank 0 once."""
    work = [(50, 50), (50, 80), (50, 90), (70, 50)]
    path = path_of(analyze(timeline(*lockstep(work, transfer_ns=10))))
    assert path.shares() == {
        (1, "forward"): 80 + 90,
        (0, "forward"): 70,
        (0, "exposed_transfer[dp]"): 30,
    }
    assert [step_path.wall_ns for step_path in path.steps] == [90, 100, 80]
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
def test_the_path_of_known_workloads_follows_their_slowest_rank(name: str, shares: dict[tuple[int, str], int]) -> None:
    path = path_of(analyze(recorded(wired(NAMED[name]), steps=4)))
    per_step = {key: ns / len(path.steps) / MS for key, ns in path.shares().items() if ns > len(path.steps)}
    assert per_step == pytest.approx(shares, abs=1e-3)


@pytest.mark.parametrize("workload", list(map(wired, WORKLOADS)), ids=lambda workload: workload.name)
def test_the_path_of_known_workloads_is_as_long_as_a_step(workload: Workload) -> None:
    path = path_of(analyze(recorded(workload, steps=5)))
    assert [step.wall_ns for step in path.steps] == [max(map(wall_ns, truth(workload)))] * 4


def assert_tiled(analysis: Analysis) -> int:
    """Check that the path tiles its steps, and return the number of changes of rank."""
    path, hops = path_of(analysis), 0
    took = {
        (rank.rank, step_path.number): step_path.length_ns
        for rank in analysis.timeline.ranks
        for step_path in rank.steps
    }
    for step_path in path.steps:
        pairs = list(zip(step_path.segments, step_path.segments[1:], strict=False))
        assert all(before.end_ns == after.start_ns for before, after in pairs)
        assert all((before.rank, before.term) != (after.rank, after.term) for before, after in pairs)
        assert all(segment.length_ns > 0 for segment in step_path.segments)
        assert step_path.end_ns - step_path.start_ns <= max(
            ns for (_, number), ns in took.items() if number == step_path.number
        )
        hops += sum(before.rank != after.rank for before, after in pairs)
    assert sum(path.shares().values()) == path.wall_ns
    return hops


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", seeds(15))
def test_segments_of_random_records_tile_each_step(seed: int) -> None:
    analysis = analyze(build_timeline(random_run(Random(seed))))
    if analysis.critical_path is not None:
        assert_tiled(analysis)


def test_the_path_of_random_workloads_changes_rank_and_has_no_exposed_wait() -> None:
    hops = 0
    for seed in range(15):
        analysis = analyze(recorded(Scripted(name="random", seed=seed), steps=3))
        hops += assert_tiled(analysis)
        assert not any(term.startswith("exposed_wait") for _, term in path_of(analysis).shares())
    assert hops > 30


def test_a_long_run_has_paths_of_evenly_spread_steps_up_to_the_last() -> None:
    """2,501 steps count after the warm-up: every third."""
    path = path_of(analyze(timeline(*lockstep([(50, 50)] * 2_502, transfer_ns=10))))
    assert len(path.steps) == 834
    assert [path.steps[0].number, path.steps[1].number, path.steps[-1].number] == [2, 5, 2_501]
