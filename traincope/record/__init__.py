"""Inside the training process: hooks -> records. It only writes; it never raises, blocks or computes.

`run.py` is the entry: it starts a `Recorder` (who writes where) and installs the `HOOKS` (what is
seen). Everything torch calls into here passes `guard.guard`, the one place that catches.
"""
