"""Results -> text, JSON and, in `html`, one HTML file. Nothing here prints: the console or the string is the caller's.

`html` is imported by itself: it needs plotly, and nothing else here does.
"""

from traincope.report.document import to_document, to_json
from traincope.report.text import render, render_document

__all__ = ["render", "render_document", "to_document", "to_json"]
