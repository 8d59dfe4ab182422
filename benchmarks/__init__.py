"""Costs of recording, reading and showing, measured with budgets. `make bench` and its relatives run them."""
