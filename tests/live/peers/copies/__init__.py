"""Copies of ranks, on their host and on a witness."""
