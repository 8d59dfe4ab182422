"""Live metrics for Prometheus: an HTTP server, its settings, the exposition format, and the table of metrics.

Not here: finished runs as OpenMetrics text (`traincope_exporters.openmetrics`).
"""
