"""One HTML file of a run: `page` is the whole, `sections` its parts from top to bottom.

Every number on the page is taken from the document that `report --format json` prints (`source`), every figure is one
of `traincope.figures` (`plots`), and every text is escaped by how markup is made (`markup`). The file asks the
network for nothing: plotly's script lies in it compressed, and the page's own (`page.js`) inflates it.
"""

from traincope.report.html.page import to_html

__all__ = ["to_html"]
