"""Simulated hosts with known clocks; and slow links and background threads for real ranks."""
