"""The metric catalogue as Grafana dashboards and Prometheus rules."""
