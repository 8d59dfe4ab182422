"""Figures that compare ranks: communication tree, wait matrix, pipeline schedule, critical path, heatmap.

Figures over time are in `run` and `steps`.
"""
