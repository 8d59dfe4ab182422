"""Reliability of a job over all its attempts: interruptions, time between them, lost time by cause, checkpoints.

`interruptions` finds them in a recorded job, `logbooks` in an imported list. `mtbf` estimates the mean time between
them, `badput` splits the lost time by cause, `rolling` follows goodput over time, and `cadence` compares the recorded
interval of checkpoints with the best one. `reliability` puts these together.
"""
