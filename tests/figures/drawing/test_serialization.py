"""Figures in a page, and their light and dark themes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from traincope.figures.drawing.canvas import canvas, named_rows, stacked
from traincope.figures.drawing.serialization import figure_json, script, templates_json
from traincope.figures.drawing.templates import DARK, LIGHT

WITHOUT_PLOTLY = """
import sys
sys.modules["plotly"] = None
from traincope.cli.main import main
main()
"""
SAMPLE = Path(__file__).parents[3] / "sample_runs" / "format-1"


def test_a_figure_is_written_without_template_and_nan_as_null() -> None:
    written = json.loads(figure_json(canvas([go.Bar(y=[1.0, float("nan")])], height=123)))
    assert written["data"] == [{"type": "bar", "y": [1.0, None]}]
    assert "template" not in written["layout"]
    assert written["layout"]["height"] == 123


def test_an_array_is_written_as_its_bytes() -> None:
    written = json.loads(figure_json(canvas([go.Bar(y=np.array([1, 2], dtype=np.int8))])))
    assert written["data"][0]["y"] == {"dtype": "i1", "bdata": "AQI="}


def test_light_and_dark_differ_only_in_ink() -> None:
    light, dark = (template.to_plotly_json()["layout"] for template in (LIGHT, DARK))
    assert light["font"]["color"] != dark["font"]["color"]
    assert light["colorway"] == dark["colorway"]
    assert light["paper_bgcolor"] == dark["paper_bgcolor"] == "rgba(0,0,0,0)"
    assert set(json.loads(templates_json())) == {"light", "dark"}


def test_the_script_is_plotlys() -> None:
    assert script().startswith("/**\n* plotly.js v")


def test_figures_above_each_other_share_the_x_axis_and_leave_room_between() -> None:
    """Three of 0.3 with 0.05 between."""
    layout = stacked([[go.Bar(y=[1])], [go.Bar(y=[1])], [go.Bar(y=[1])]], between=0.05).layout
    assert [[round(end, 9) for end in axis.domain] for axis in (layout.yaxis, layout.yaxis2, layout.yaxis3)] == [
        [0.7, 1.0],
        [0.35, 0.65],
        [0.0, 0.3],
    ]
    assert layout.xaxis.anchor == "y3"


def test_many_rows_have_only_some_names() -> None:
    assert named_rows(["a", "b"])["ticktext"] == ["a", "b"]
    assert named_rows([str(at) for at in range(64)])["tickvals"] == list(range(0, 64, 4))


def test_without_plotly_a_report_is_one_sentence() -> None:
    words = [sys.executable, "-c", WITHOUT_PLOTLY, "report", str(SAMPLE), "--format", "html"]
    result = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (
        8,
        "",
        "traincope report: figures are drawn with plotly, which is not installed: pip install 'traincope[view]'\n",
    )
