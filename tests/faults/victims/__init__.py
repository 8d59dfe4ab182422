"""Processes that suffer a fault: the server that forks them, and the training that they run."""
