"""Metrics of a running job: the state of a node's counters, gauges and histograms, updated window by window.

`state` holds them and `samples` converts them to samples of the catalogue. Not here: the computation of values, which
the replay of a finished run shares (`traincope.metrics.values`).
"""
