"""One recorded run of a process: its options, identity, directory, steps and end.

`recorder.py` holds the `Recorder` through which every hook writes. The hooks are in the neighbouring packages.
"""
