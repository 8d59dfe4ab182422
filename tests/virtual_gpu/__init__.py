"""A deterministic model of GPUs and the hosts that drive them, whose device ledger is known to the nanosecond.

A program (`actions`) lists what each rank's host does. `machine` computes when everything happens, `truth` the terms
of every rank and step, `kineto` the traces that torch's profiler would write, and `device` drives the recorder.
`programs` has small programs whose terms are computed by hand, `random_programs` draws others.
"""
