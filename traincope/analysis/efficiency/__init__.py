"""Efficiency of a job: FLOPs, peaks, MFU and HFU, goodput, cost, experts.

Each module is one result. Where the time of a step goes is in `ledger`; kernels of a trace are in `kernels`.
"""
