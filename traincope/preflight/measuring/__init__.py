"""Measuring on the ranks, which call everything here together. It needs torch and a process group.

Repeats of different measurements are interleaved, so that a disturbance of some seconds does not meet only one of them.
"""
