import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traincope.figures.drawing.folding import by_count, by_name

NAN = float("nan")


def test_few_positions_have_one_place_each() -> None:
    assert by_count(3, max_places=5).borders == (0, 1, 2, 3)


def test_many_positions_share_places_of_equal_size() -> None:
    fold = by_count(10, max_places=4)
    assert fold.borders == (0, 3, 6, 9, 10)
    assert [fold.ends(place) for place in range(4)] == [(0, 2), (3, 5), (6, 8), (9, 9)]


def test_neighbours_with_the_same_name_share_a_place() -> None:
    assert by_name(["a", "a", "b", "a"]).borders == (0, 2, 3, 4)


def test_a_mean_leaves_out_missing_values() -> None:
    assert by_count(4, max_places=2).mean(np.array([1.0, NAN, 5.0, 7.0])).tolist() == [1.0, 6.0]
    assert np.isnan(by_count(2, max_places=1).mean(np.array([NAN, NAN]))).all()


def test_the_largest_value_of_a_place_stays() -> None:
    values = np.array([[0.0, 9.0, 0.0, NAN], [NAN, NAN, 1.0, 2.0]])
    assert by_count(4, max_places=2).max(values).tolist()[0] == [9.0, 0.0]
    assert by_count(4, max_places=2).max(values)[1, 1] == 2.0


@given(st.integers(1, 5_000), st.integers(1, 300))
def test_every_position_has_one_place_within_the_limit(length: int, max_places: int) -> None:
    fold = by_count(length, max_places=max_places)
    assert len(fold) <= max_places
    assert [at for place in range(len(fold)) for at in range(fold.ends(place)[0], fold.ends(place)[1] + 1)] == list(
        range(length)
    )
