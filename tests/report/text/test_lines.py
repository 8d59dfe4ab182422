from traincope.report.text.layout.lines import text


def test_markup_in_a_name_is_only_text() -> None:
    shown = text("[red]x[/red] :smile:")
    assert shown.plain == "[red]x[/red] :smile:"
    assert shown.spans == []
