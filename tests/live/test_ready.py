"""A step is reduced once no rank of the node can change its records any more."""

from traincope.live.ready import NONE, PATIENCE_NS, Progress, last_ready

SECOND = 1_000_000_000


def rank(ends: dict[int, int], *, done: int = -1, open_since: int | None = None, over: bool = False) -> Progress:
    return Progress(done=done, ends_ns=ends, open_since_ns=open_since, over=over)


def test_a_step_is_ready_when_all_have_finished_the_next() -> None:
    ranks = [rank({0: 10, 1: 20, 2: 30}), rank({0: 11, 1: 21})]
    assert last_ready(ranks, expected=2, now_ns=31) == 0
    assert last_ready([ranks[0], rank({0: 11, 1: 21, 2: 32})], expected=2, now_ns=33) == 1


def test_the_latest_step_is_ready_a_second_later_unless_a_collective_of_it_is_open() -> None:
    ranks = [rank({0: 10}), rank({0: 20})]
    assert last_ready(ranks, expected=2, now_ns=20 + SECOND - 1) == NONE
    assert last_ready(ranks, expected=2, now_ns=20 + SECOND) == 0
    begun_in_it, begun_after = rank({0: 10}, open_since=19), rank({0: 10}, open_since=20)
    assert last_ready([begun_in_it, ranks[1]], expected=2, now_ns=20 + SECOND) == NONE
    assert last_ready([begun_after, ranks[1]], expected=2, now_ns=20 + SECOND) == 0


def test_a_rank_that_is_over_keeps_nobody_waiting() -> None:
    ranks = [rank({3: 10, 4: 20}, done=2), rank({}, done=2, over=True)]
    assert last_ready(ranks, expected=2, now_ns=21) == 3
    assert last_ready([rank({3: 10}, done=2, over=True), ranks[1]], expected=2, now_ns=21) == 3


def test_nothing_is_ready_before_all_ranks_of_the_node_are_there() -> None:
    ranks = [rank({0: 10, 1: 20})]
    assert last_ready(ranks, expected=2, now_ns=5 * SECOND) == NONE
    assert last_ready(ranks, expected=1, now_ns=5 * SECOND) == 1


def test_a_rank_that_hangs_does_not_keep_the_others_waiting_for_ever() -> None:
    ranks = [rank({5: 0, 6: 10}, done=4), rank({}, done=4)]
    assert last_ready(ranks, expected=2, now_ns=PATIENCE_NS) == 4
    assert last_ready(ranks, expected=2, now_ns=PATIENCE_NS + 1) == 6


def test_without_steps_nothing_is_ready() -> None:
    assert last_ready([rank({})], expected=1, now_ns=0) == NONE
