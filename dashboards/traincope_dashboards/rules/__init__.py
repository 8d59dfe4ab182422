"""Prometheus rules: recording rules, limits, and the alerts in `alerts`.

Each alert has a page in `runbooks`. Panels and boards are elsewhere.
"""
