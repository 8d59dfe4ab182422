from hypothesis import given
from hypothesis import strategies as st

from traincope.report.plain import plain, text


def test_terminal_commands_become_visible() -> None:
    assert plain("\x1b[31mred\x07\r\n") == "\\x1b[31mred\\x07\\r\\n"


def test_bidirectional_overrides_and_lone_surrogates_become_visible() -> None:
    assert plain("a\u202eb\ud800") == "a\\u202eb\\ud800"


def test_letters_of_any_script_stay() -> None:
    assert plain("layers.0 Überschrift 層") == "layers.0 Überschrift 層"


def test_markup_in_a_name_is_only_text() -> None:
    shown = text("[red]x[/red] :smile:")
    assert shown.plain == "[red]x[/red] :smile:"
    assert shown.spans == []


@given(st.text())
def test_what_is_plain_prints_on_one_line(name: str) -> None:
    assert plain(name).isprintable()
    plain(name).encode()
