"""Steps are reduced once no rank of the node can change their events."""

from tests.timeline.build import rank as records
from tests.timeline.build import step
from traincope.events import OPEN
from traincope.live.node.ready import AWAITED_NS, NO_READY_STEP, PATIENCE_NS, Progress, last_arrived, last_ready
from traincope.live.window import CopiedRank

SECOND = 1_000_000_000


def rank(ends: dict[int, int], *, done: int = -1, open_since: int | None = None, over: bool = False) -> Progress:
    return Progress(done=done, ends_ns=ends, open_since_ns=open_since, over=over)


def test_a_step_is_ready_when_all_ranks_finished_the_next() -> None:
    ranks = [rank({0: 10, 1: 20, 2: 30}), rank({0: 11, 1: 21})]
    assert last_ready(ranks, expected=2, now_ns=31) == 0
    assert last_ready([ranks[0], rank({0: 11, 1: 21, 2: 32})], expected=2, now_ns=33) == 1


def test_the_latest_step_is_ready_after_a_second_without_open_collectives() -> None:
    ranks = [rank({0: 10}), rank({0: 20})]
    assert last_ready(ranks, expected=2, now_ns=20 + SECOND - 1) == NO_READY_STEP
    assert last_ready(ranks, expected=2, now_ns=20 + SECOND) == 0
    begun_in_it, begun_after = rank({0: 10}, open_since=19), rank({0: 10}, open_since=20)
    assert last_ready([begun_in_it, ranks[1]], expected=2, now_ns=20 + SECOND) == NO_READY_STEP
    assert last_ready([begun_after, ranks[1]], expected=2, now_ns=20 + SECOND) == 0


def test_an_ended_rank_does_not_delay_the_others() -> None:
    ranks = [rank({3: 10, 4: 20}, done=2), rank({}, done=2, over=True)]
    assert last_ready(ranks, expected=2, now_ns=21) == 3
    assert last_ready([rank({3: 10}, done=2, over=True), ranks[1]], expected=2, now_ns=21) == 3


def test_no_step_is_ready_before_all_ranks_of_the_node_exist() -> None:
    ranks = [rank({0: 10, 1: 20})]
    assert last_ready(ranks, expected=2, now_ns=5 * SECOND) == NO_READY_STEP
    assert last_ready(ranks, expected=1, now_ns=5 * SECOND) == 1


def test_a_hanging_rank_delays_the_others_only_for_a_limited_time() -> None:
    ranks = [rank({5: 0, 6: 10}, done=4), rank({}, done=4)]
    assert last_ready(ranks, expected=2, now_ns=PATIENCE_NS) == 4
    assert last_ready(ranks, expected=2, now_ns=PATIENCE_NS + 1) == 6


def test_without_steps_nothing_is_ready() -> None:
    assert last_ready([rank({})], expected=1, now_ns=0) == NO_READY_STEP


def other(*, finished: int, arrived_ns: int = 0) -> CopiedRank:
    """A rank of another host that is in the step after `finished`."""
    steps = [step(number, number, number + 1) for number in range(finished + 1)]
    return CopiedRank(records=records(9, *steps, step(finished + 1, finished + 1, OPEN)), arrived_ns=arrived_ns)


def test_a_step_waits_until_each_copied_rank_has_finished_the_next() -> None:
    ranks = [rank({0: 10, 1: 20, 2: 30, 3: 40})]
    assert last_arrived(ranks, [], until=2, now_ns=50) == 2
    assert last_arrived(ranks, [other(finished=2), other(finished=5)], until=2, now_ns=50) == 1
    assert last_arrived(ranks, [other(finished=9)], until=2, now_ns=50) == 2
    assert last_arrived(ranks, [other(finished=-1)], until=2, now_ns=50) < 0


def test_a_step_waits_for_copies_only_for_a_limited_time_after_the_next() -> None:
    ranks = [rank({0: 10, 1: 20, 2: 30}), rank({0: 10, 1: 25, 2: 31})]
    behind = other(finished=0, arrived_ns=AWAITED_NS)
    assert last_arrived(ranks, [behind], until=2, now_ns=25 + AWAITED_NS) == NO_READY_STEP
    assert last_arrived(ranks, [behind], until=2, now_ns=26 + AWAITED_NS) == 0
    assert last_arrived(ranks, [behind], until=2, now_ns=32 + AWAITED_NS) == 2


def test_ranks_that_are_no_longer_copied_and_ended_ranks_wait_for_nothing() -> None:
    ranks = [rank({0: 10, 1: AWAITED_NS})]
    assert last_arrived(ranks, [other(finished=0)], until=1, now_ns=AWAITED_NS) == NO_READY_STEP
    assert last_arrived(ranks, [other(finished=0)], until=1, now_ns=AWAITED_NS + 1) == 1
    assert last_arrived([rank({0: 10}, over=True)], [other(finished=0)], until=0, now_ns=11) == 0
