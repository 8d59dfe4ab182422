"""Pipelines of actions with known durations: their true bubble, and real ones that sleep."""
