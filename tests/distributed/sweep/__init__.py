"""The sweep of `make test-engine`: its layouts, their expected communication, and the comparison with one process."""
