"""Processes that commands start: trainings, their workers, any other command; and what is printed at their end."""
