import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.units import count, duration, gigabytes_per_second, milliseconds, numbers, ranges, share, size


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (812, "812 ns"),
        (1_000, "1.00 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (1_234_567, "1.23 ms"),
        (12_345_678, "12.3 ms"),
        (99_960_000, "100 ms"),
        (3_200_000_000, "3.20 s"),
        (119_999_999_999, "120 s"),
        (200_000_000_000, "3 min 20 s"),
        (4_860_000_000_000, "1 h 21 min"),
        (-1_500_000, "-1.50 ms"),
        (None, "-"),
    ],
)
def test_a_duration_has_three_significant_digits_and_the_unit_that_fits(ns: int | None, text: str) -> None:
    assert duration(ns) == text


@given(st.integers(min_value=1, max_value=10**15))
def test_no_duration_is_ever_shown_as_zero_or_with_four_digits(ns: int) -> None:
    number, unit = duration(ns).split(" ")[:2]
    assert float(number) > 0
    assert float(number) < 1000 or unit == "h"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (4 * 1024**2, "4.0 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**5, "5120.0 TiB"),
        (None, "-"),
    ],
)
def test_bytes_are_in_binary_units(num_bytes: int | None, text: str) -> None:
    assert size(num_bytes) == text


def test_bandwidth_is_in_decimal_gigabytes_per_second_without_unit() -> None:
    assert gigabytes_per_second(12.5e9) == "12.5"
    assert gigabytes_per_second(450e9) == "450"
    assert gigabytes_per_second(30e6) == "0.03"
    assert gigabytes_per_second(464.0) == "<0.01"
    assert gigabytes_per_second(None) == "-"


def test_a_positive_share_never_reads_zero() -> None:
    assert share(0.2134) == "21.3 %"
    assert share(0.0) == "0.0 %"
    assert share(0.0004) == "<0.1 %"
    assert share(-0.0004) == "0.0 %"
    assert share(-0.012) == "-1.2 %"
    assert share(None) == "-"


def test_counts_separate_thousands_and_agree_with_their_noun() -> None:
    assert count(1, "step") == "1 step"
    assert count(1_234_567, "event") == "1,234,567 events"
    assert count(12) == "12"
    assert count(None, "event") == "-"


def test_milliseconds_carry_no_unit() -> None:
    assert milliseconds(12_345_678) == "12.35"
    assert milliseconds(None) == "-"


def test_rank_lists_are_drawn_together() -> None:
    assert numbers((0,)) == "0"
    assert numbers((3, 2)) == "2, 3"
    assert numbers((9, 2, 3, 4, 5, 0)) == "0, 2-5, 9"
    assert numbers(()) == ""


def test_ranges_of_steps_are_printed_by_their_ends() -> None:
    assert ranges([[7, 7]], "step", max_ranges=2) == "step 7"
    assert ranges([[61, 1_361], [1_400, 1_400]], "step", max_ranges=2) == "steps 61-1361, 1400"
    assert ranges([[0, 2], [5, 5], [9, 9]], "step", max_ranges=2) == "steps 0-2, 5, ..."
