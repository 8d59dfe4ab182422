from hypothesis import given
from hypothesis import strategies as st

from traincope.printable import printable, short


def test_terminal_commands_become_visible() -> None:
    assert printable("\x1b[31mred\x07\r\n") == "\\x1b[31mred\\x07\\r\\n"


def test_bidirectional_overrides_and_lone_surrogates_become_visible() -> None:
    assert printable("a\u202eb\ud800") == "a\\u202eb\\ud800"


def test_letters_of_any_script_stay() -> None:
    assert printable("layers.0 Überschrift 層") == "layers.0 Überschrift 層"


def test_a_long_name_keeps_both_its_ends() -> None:
    assert short("abcdefghij", max_length=10) == "abcdefghij"
    assert short("abcdefghijk", max_length=10) == "ab...ghijk"
    assert short("x" * 1_000_000 + "end", max_length=9) == "xx...xend"


def test_escapes_count_with_their_printed_length() -> None:
    assert short("\x00\x00\x00", max_length=10) == "\\x...0\\x00"


@given(st.text())
def test_a_plain_name_prints_on_one_line(name: str) -> None:
    assert printable(name).isprintable()
    printable(name).encode()


@given(st.text(), st.integers(min_value=5, max_value=20))
def test_a_shortened_name_keeps_to_the_limit(name: str, max_length: int) -> None:
    assert len(short(name, max_length=max_length)) <= max_length
