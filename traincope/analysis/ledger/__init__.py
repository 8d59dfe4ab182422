"""Ledger: the integer terms of every step on every rank, which sum exactly to the step's wall time.

Also the steps that enter the sums (`coverage`), and the stalls of GPU compute streams (`device_stalls`).
Slices and splits of stalls come from `attribution`; the efficiency metrics are not here.
"""
