"""Comparisons with known truth, and scores: what a person runs to believe the numbers. `make` has their commands."""
