"""Results -> text, JSON and, in `html`, one HTML file. Nothing here prints: the console or the string is the caller's.

`html` is imported by itself: it needs plotly, and nothing else here does.
"""

from traincope.report.diff import diff_document, render_diff
from traincope.report.document import to_document, to_json
from traincope.report.text import render, render_document
from traincope.report.what_if import prediction_document, render_prediction

__all__ = [
    "diff_document",
    "prediction_document",
    "render",
    "render_diff",
    "render_document",
    "render_prediction",
    "to_document",
    "to_json",
]
