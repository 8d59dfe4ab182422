"""Anomalies in records: slow and changed steps, logged values, memory that grows, and readings of GPUs.

Each module finds one kind. How ranks end is in `endings`, and who caused a hang in `hangs`.
"""
