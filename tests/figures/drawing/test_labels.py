from traincope.figures.drawing.labels import label


def test_tags_in_a_name_are_text() -> None:
    assert label("<b>x</b> & <script>") == "&lt;b&gt;x&lt;/b&gt; &amp; &lt;script&gt;"


def test_a_name_of_megabytes_is_short() -> None:
    assert len(label("x" * 5_000_000)) == 60


def test_unprintable_characters_are_visible() -> None:
    assert label("a\x1b[0m\nb") == "a\\x1b[0m\\nb"
