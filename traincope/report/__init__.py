"""Reports of results: `schema` (the JSON's types), `document` (results -> JSON), `text`, `html`, and exports by name.

No analysis is here: a report only shows results, on the caller's console or as a string. Import `html` by itself: it
alone needs plotly.
"""

from traincope.report.document.document import to_document, to_json
from traincope.report.document.job_summary import summary_document
from traincope.report.text.brief import brief_document, render_brief
from traincope.report.text.diff import diff_document, render_diff
from traincope.report.text.first_screen import render_first_screen
from traincope.report.text.hangs import hang_document, render_hangs
from traincope.report.text.job_summary import render_summary
from traincope.report.text.text import render, render_document
from traincope.report.text.what_if import prediction_document, render_prediction, render_settings, settings_document
from traincope.report.text.workflow import render_workflow, workflow_document

__all__ = [
    "brief_document",
    "diff_document",
    "hang_document",
    "prediction_document",
    "render",
    "render_brief",
    "render_diff",
    "render_document",
    "render_first_screen",
    "render_hangs",
    "render_prediction",
    "render_settings",
    "render_summary",
    "render_workflow",
    "settings_document",
    "summary_document",
    "to_document",
    "to_json",
    "workflow_document",
]
