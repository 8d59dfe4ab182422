"""Exact conversion of printed microseconds to ns."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.ingest.traces.decimals import to_ns


def test_every_notation_of_a_number_is_read() -> None:
    printed = ["4458676983543.183", "1683564902133354", "0.28", "62", "7.", ".5", "12.5000", "-1.5", "1e3", "0"]
    assert to_ns([number.encode() for number in printed]).tolist() == [
        *(4_458_676_983_543_183, 1_683_564_902_133_354_000, 280, 62_000),
        *(7_000, 500, 12_500, -1_500, 1_000_000, 0),
    ]


def test_a_time_since_the_epoch_keeps_the_ns_that_a_float_loses() -> None:
    assert to_ns([b"1683564902133354.123"]).tolist() == [1_683_564_902_133_354_123]
    assert int(float("1683564902133354.123") * 1000) != 1_683_564_902_133_354_123


def test_digits_below_a_ns_round() -> None:
    assert to_ns([b"0.0004", b"0.0005", b"1.23449", b"1.2345", b"9.9999999"]).tolist() == [0, 1, 1234, 1235, 10_000]


def test_an_empty_column_stays_empty() -> None:
    assert to_ns([]).tolist() == []


@pytest.mark.parametrize("printed", ["", ".", "1.2.3", "NaN", "12a", "٣"])
def test_text_that_is_not_a_number_is_refused(printed: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number|NaN|ascii"):
        to_ns([b"1.0", printed.encode()])


@pytest.mark.parametrize("printed", ["9999999999999999", "99999999999999999999"])
def test_more_than_64_bits_of_ns_are_refused(printed: str) -> None:
    with pytest.raises(OverflowError):
        to_ns([printed.encode()])


@given(
    st.lists(
        st.decimals(min_value=0, max_value=Decimal(9) * 10**15, places=6) | st.integers(0, 9 * 10**15).map(Decimal)
    )
)
def test_any_column_equals_decimal_arithmetic(values: list[Decimal]) -> None:
    exact = [int((value * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP)) for value in values]
    assert to_ns([f"{value:f}".encode() for value in values]).tolist() == exact
