"""Comparison of two runs: is the second slower, which term changed, and what was set up differently.

`series` makes the step series, `significance` tests their difference, `settings` compares the set-ups, `diff` judges.
"""
