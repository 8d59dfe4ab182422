"""Results -> the document of `schema`: the whole, its parts, its costs, and losses of the recorders.

No text for people is here; that is in `report.text` and `report.html`.
"""
