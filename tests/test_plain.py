from hypothesis import given
from hypothesis import strategies as st

from traincope.plain import plain, short


def test_terminal_commands_become_visible() -> None:
    assert plain("\x1b[31mred\x07\r\n") == "\\x1b[31mred\\x07\\r\\n"


def test_bidirectional_overrides_and_lone_surrogates_become_visible() -> None:
    assert plain("a\u202eb\ud800") == "a\\u202eb\\ud800"


def test_letters_of_any_script_stay() -> None:
    assert plain("layers.0 Überschrift 層") == "layers.0 Überschrift 層"


def test_a_long_name_keeps_both_its_ends() -> None:
    assert short("abcdefghij", most=10) == "abcdefghij"
    assert short("abcdefghijk", most=10) == "ab...ghijk"
    assert short("x" * 1_000_000 + "end", most=9) == "xx...xend"


def test_what_does_not_print_counts_as_what_it_is_shown_as() -> None:
    assert short("\x00\x00\x00", most=10) == "\\x...0\\x00"


@given(st.text())
def test_what_is_plain_prints_on_one_line(name: str) -> None:
    assert plain(name).isprintable()
    plain(name).encode()


@given(st.text(), st.integers(min_value=5, max_value=20))
def test_what_is_short_is_never_longer(name: str, most: int) -> None:
    assert len(short(name, most=most)) <= most
