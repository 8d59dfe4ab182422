"""The metric catalogue as Grafana dashboards and Prometheus rules.

`boards` are the dashboards, `panels` their building blocks, `rules` the recording rules and alerts, `runbooks` one page
per alert. `build` writes them as files, `push` puts them into a running Grafana. The metrics themselves are defined in
`traincope.metrics`.
"""
