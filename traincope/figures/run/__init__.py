"""Figures of a whole run on its time axis: timeline, faults, goodput, and curves of a running job.

Figures with one point per step are in `steps`.
"""
