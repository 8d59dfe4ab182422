"""Record a training from inside its process: hooks see what torch does and write events.

`run.py` is the entry. It starts a `Recorder` (`session/`) and installs the hooks that `hooks.py` lists.
The recorder only writes. It never raises into training, never blocks it, and computes nothing: analysis is elsewhere.
Every function of it that torch calls passes `instrumentation.guard.guard`, the one place that catches exceptions.
"""
