"""Samples of a running job, and records of a finished run, in the words of other systems."""
