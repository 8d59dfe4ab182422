"""Hooks on the process: its signals, its stacks, Python's garbage collector, and torch's flight recorder on request."""
