"""Exports of a run's intervals for trace viewers: Perfetto, speedscope and folded stacks.

`intervals`, `tracks`, `balance`, `flows` and `points` prepare events for them. Not here: spans for a collector
(`traincope_exporters.otlp`).
"""
