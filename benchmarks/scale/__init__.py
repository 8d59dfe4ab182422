"""Runs of many ranks: one rank per pipeline stage is recorded for real, and its records are replayed on the others."""
