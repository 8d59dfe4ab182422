"""Anomalies in records: slow, changed and bad steps, logged values, the order of the data, memory that grows, and
readings of GPUs.

Each module finds one kind. How ranks end is in `endings`, and who caused a hang in `hangs`.
"""
