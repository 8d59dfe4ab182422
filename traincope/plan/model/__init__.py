"""Formulas of one transformer: weights, FLOPs, and bytes per parameter.

Nothing here knows ranks. What a layout divides among ranks stands in `layout`.
"""
