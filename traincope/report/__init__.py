"""Results -> text and JSON. Nothing here prints: the console or the string is the caller's."""

from traincope.report.document import to_document, to_json
from traincope.report.text import render, render_document

__all__ = ["render", "render_document", "to_document", "to_json"]
