"""Losses other than dropped events, in words."""

from traincope.report.document.recording_losses import losses_text


def test_only_actual_losses_are_put_in_words() -> None:
    assert losses_text({"names_refused": 1_200, "details_refused": 0, "lost_lines": None, "values_left_out": 3}) == (
        "1,200 names, 3 values of run.log()"
    )
    assert losses_text({"names_refused": 0, "details_refused": None}) == ""
