"""Commands, one a file; the only place that prints and exits."""
