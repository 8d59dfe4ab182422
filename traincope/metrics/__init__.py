"""Definitions of a job's metrics: names, labels, values.

`catalogue` declares every metric. `metric` and `sample` hold the types, `labels` the label values. `values` computes
metrics from an analysis. Exposition formats are not here but in the exporters.
"""
