"""Reports of results: `schema` (the JSON's types), `document` (results -> JSON), `text`, `html`, and exports by name.

No analysis is here: a report only shows results, on the caller's console or as a string. Import `html` by itself: it
alone needs plotly.
"""
