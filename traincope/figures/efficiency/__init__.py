"""Figures of efficiency: the waterfall from peak to MFU, kernels and GPUs of traces, experts, plans.

Figures of single steps are in `steps`.
"""
