"""Predicted step time after a change, by replaying the recorded steps.

`moves` turns records into what each rank does, `replay` plays it with changed times, `what_if` parses changes and
compares. Pictures and text are elsewhere.
"""
