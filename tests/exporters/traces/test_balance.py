"""Conversion of overlapping intervals to nested begins and ends, without moving time."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from traincope_exporters.traces.balance import Edge, balanced


def edges(*intervals: tuple[int, int]) -> list[tuple[int, str, int]]:
    result = balanced([start for start, _ in intervals], [end for _, end in intervals])
    return [(edge.at_ns, "begin" if edge.begins else "end", edge.number) for edge in result]


def test_the_inner_interval_ends_first() -> None:
    assert edges((0, 10), (2, 5), (5, 10)) == [
        (0, "begin", 0),
        (2, "begin", 1),
        (5, "end", 1),
        (5, "begin", 2),
        (10, "end", 2),
        (10, "end", 0),
    ]


def test_an_interval_that_outlives_its_parent_is_split() -> None:
    assert edges((0, 10), (4, 15)) == [
        (0, "begin", 0),
        (4, "begin", 1),
        (10, "end", 1),
        (10, "end", 0),
        (10, "begin", 1),
        (15, "end", 1),
    ]


def test_no_intervals_give_no_edges() -> None:
    assert edges() == []


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30).map(
    lambda pairs: sorted(
        ((start, start + length) for start, length in pairs), key=lambda interval: (interval[0], -interval[1])
    )
)


@given(intervals)
def test_stacks_are_balanced_and_keep_every_length(all_: list[tuple[int, int]]) -> None:
    stack: list[int] = []
    open_ns: Counter[int] = Counter()
    before = 0
    result: list[Edge] = list(balanced([start for start, _ in all_], [end for _, end in all_]))
    for edge in result:
        assert edge.at_ns >= before
        for number in stack:
            open_ns[number] += edge.at_ns - before
        before = edge.at_ns
        if edge.begins:
            stack.append(edge.number)
        else:
            assert stack.pop() == edge.number
    assert stack == []
    assert {number: open_ns[number] for number in range(len(all_))} == {
        number: end - start for number, (start, end) in enumerate(all_)
    }
