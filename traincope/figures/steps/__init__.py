"""Figures with one point per step: ledger, memory, logged values, GPU samples, hardware events.

The timeline is in `run`.
"""
