"""The compare page says what was not tested, and calls none of it 'no evidence of a change'."""

import json
from dataclasses import replace

from plotly.utils import PlotlyJSONEncoder

from tests.report.text.test_diff import SLOWER, moved
from traincope.analysis import Diff, Judgement
from traincope.viewer.pages import compare


def shown(result: Diff) -> str:
    return json.dumps([list(compare._answer(result)), compare._terms(result)], cls=PlotlyJSONEncoder)


def test_an_untested_change_has_the_number_of_steps_that_a_test_needs() -> None:
    """A term that goes from 9.6 to 55.6 without a test."""
    untested = moved("step", 9.6, 55.6, p=None)
    few = replace(SLOWER, judgement=Judgement.NOT_TESTED, step=untested, interval=None)
    text = shown(replace(few, terms=(moved("forward", 9.6, 55.6, p=None),)))
    assert text.count("about 50 steps per run are needed") == 3
    assert "no evidence of a change" not in text
    assert "no evidence of a change" in shown(replace(SLOWER, terms=(moved("forward", 9.6, 9.7),)))
