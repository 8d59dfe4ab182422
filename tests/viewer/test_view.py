"""Views and their addresses."""

import pytest

from traincope.viewer.view import View, whole_numbers


def test_an_address_survives_reading_and_writing() -> None:
    address = "/timeline?run=1&ranks=0-3&lanes=comm+tp&lanes=gpu+0%2C+stream+7&from=-5&to=10"
    pathname, _, search = address.partition("?")
    view = View.of(pathname, f"?{search}")
    assert view.address == address
    assert (view.page, view.run, view.ranks()) == ("timeline", 1, (0, 1, 2, 3))
    assert view.texts("lanes") == ("comm tp", "gpu 0, stream 7")
    assert (view.whole("from"), view.whole("to")) == (-5, 10)


def test_invalid_parameters_are_ignored() -> None:
    view = View.of("/timeline", "?ranks=a-b&from=1e9&run=x&to=99999999999999999999999")
    assert (view.ranks(), view.whole("from"), view.whole("to"), view.run) == (None, None, None, 0)
    assert View.of(None, None) == View()


def test_another_page_keeps_only_the_run() -> None:
    view = View.of("/timeline", "?run=1&ranks=0&from=1&to=2")
    assert view.on("ledger").address == "/ledger?run=1"
    assert view.on("timeline", step=3, ranks=None).address == "/timeline?run=1&step=3"


def test_a_parameter_is_changed_or_left_out() -> None:
    view = View.of("/timeline", "?from=1&to=2&step=4")
    assert view.but(from_=5, step=None).address == "/timeline?from=5&to=2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", (3,)),
        ("0-2, 7", (0, 1, 2, 7)),
        ("5-3", None),
        ("", None),
        ("1-", None),
        ("0-99999999999", None),
        ("9" * 5000, None),
    ],
)
def test_lists_of_ranks(text: str, expected: tuple[int, ...] | None) -> None:
    assert whole_numbers(text) == expected
