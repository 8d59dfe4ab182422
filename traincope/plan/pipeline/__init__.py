"""Pipelines as actions: the vocabulary, the timetable of an order, and published bubble formulas.

`orders` makes the order of each schedule. Measured pipelines stand in `analysis`.
"""
