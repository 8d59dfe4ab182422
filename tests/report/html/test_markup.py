from hypothesis import given
from hypothesis import strategies as st

from traincope.report.html.markup import MAX_CHARACTERS, Html, block, joined, tag


def test_a_string_is_text_and_only_tags_are_markup() -> None:
    inner = tag("b", "<i>")
    assert tag("p", inner, "<b>&") == "<p><b>&lt;i&gt;</b>&lt;b&gt;&amp;</p>"


def test_an_attribute_cannot_end_itself() -> None:
    assert tag("a", href='"><script>') == '<a href="&quot;&gt;&lt;script&gt;"></a>'


def test_attributes_are_named_as_in_html_and_absent_ones_are_absent() -> None:
    markup = tag("data", "5", class_="x", data_at="/a", hidden=True, id=None, disabled=False)
    assert markup == '<data class="x" data-at="/a" hidden>5</data>'
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_data_cannot_end_its_block() -> None:
    assert block('{"a":"</script><!--&"}', kind="application/json", name="d") == (
        '<script type="application/json" id="d">{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}</script>'
    )


def test_a_name_of_megabytes_is_cut_in_the_middle() -> None:
    assert len(joined("x" * 3_000_000)) == MAX_CHARACTERS


@given(st.text())
def test_no_text_becomes_markup(name: str) -> None:
    markup = tag("p", name)
    assert isinstance(markup, Html)
    assert markup.count("<") == 2
    assert markup.count(">") == 2
    markup.encode()
