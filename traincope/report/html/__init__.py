"""One HTML file per run: `page` writes the whole, `sections` its parts from top to bottom.

Every number comes from the document that `report --format json` prints (`source`), every figure from
`traincope.figures` (`plots`), and `markup` escapes every text. The file works offline: it contains plotly's script
compressed, and `page.js` inflates it.
"""

from traincope.report.html.page import to_html

__all__ = ["to_html"]
