"""Exporters: samples of a running job and events of a finished run in the formats of other systems.

`traces` and `parquet` convert events. `history` and `openmetrics` convert a finished run to series over time.
`prometheus`, `otlp` and `tensorboard` send live metrics. Not here: the definition of metrics (`traincope.metrics`).
"""
