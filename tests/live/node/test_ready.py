"""Steps are reduced once no rank of the node can change their events."""

from traincope.live.node.ready import NO_READY_STEP, PATIENCE_NS, Progress, last_ready

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
