"""Parts that all figures share: canvas, themes, scales, labels, folding of many rows, time axes, JSON and PNG.

No module here knows an analysis.
"""
