"""Stragglers: the rank that the others waited for, through wait chains, and the roots of pipeline jitter.

Also every rank's own work per step, for the heat map. Findings and advice are in `verdict`.
"""
