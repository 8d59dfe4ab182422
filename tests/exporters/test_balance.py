"""Overlapping intervals as begins and ends of calls: balanced, in order, and no time moved."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from traincope_exporters.balance import Edge, balanced


def edges(*intervals: tuple[int, int]) -> list[tuple[int, str, int]]:
    found = balanced([start for start, _ in intervals], [end for _, end in intervals])
    return [(edge.at_ns, "begin" if edge.begins else "end", edge.number) for edge in found]


def test_what_is_inside_ends_first() -> None:
    assert edges((0, 10), (2, 5), (5, 10)) == [
        (0, "begin", 0),
        (2, "begin", 1),
        (5, "end", 1),
        (5, "begin", 2),
        (10, "end", 2),
        (10, "end", 0),
    ]


def test_what_outlives_its_parent_is_ended_with_it_and_begun_again() -> None:
    assert edges((0, 10), (4, 15)) == [
        (0, "begin", 0),
        (4, "begin", 1),
        (10, "end", 1),
        (10, "end", 0),
        (10, "begin", 1),
        (15, "end", 1),
    ]


def test_nothing_has_no_edges() -> None:
    assert edges() == []


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30).map(
    lambda pairs: sorted(((start, start + length) for start, length in pairs), key=lambda one: (one[0], -one[1]))
)


@given(intervals)
def test_stacks_are_balanced_and_every_interval_is_open_as_long_as_it_lasts(all_: list[tuple[int, int]]) -> None:
    stack: list[int] = []
    open_ns: Counter[int] = Counter()
    before = 0
    found: list[Edge] = list(balanced([start for start, _ in all_], [end for _, end in all_]))
    for edge in found:
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
