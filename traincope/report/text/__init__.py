"""Reports as text for a console: the full report, the first screen, comparisons and predictions.

`sections` has one module per section of the report, `layout` the look of lines, tables, bars and numbers.
"""
