"""Clocks: offsets between hosts' clocks with bounds on their error.

The evidence from collectives and messages, and its use on a timeline, are in `evidence` and `alignment`.
"""
