"""Intervals: array algorithms on intervals and integers: unions, innermost owners, nesting, medians, numbering.

They know nothing of ranks, steps or records.
"""
