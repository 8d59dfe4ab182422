"""What was lost, beside records, in words."""

from traincope.report.lost import in_words


def test_only_what_was_lost_is_told_in_words() -> None:
    assert in_words({"names_refused": 1_200, "details_refused": 0, "lost_lines": None, "values_left_out": 3}) == (
        "1,200 names, 3 values of run.log()"
    )
    assert in_words({"names_refused": 0, "details_refused": None}) == ""
