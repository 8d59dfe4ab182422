"""The alerts. To add one, write an `Alert` in the file of its kind, and a page in `runbooks/`."""

from collections.abc import Iterator

from traincope_dashboards.rules.alert import Alert, Rules
from traincope_dashboards.rules.alerts import hardware, job, liveness, speed, watching
from traincope_dashboards.rules.limits import Limits


def alerts(limits: Limits) -> Iterator[Alert]:
    """All alerts, the most urgent kind first."""
    rules = Rules(limits=limits)
    for kind in (liveness, job, hardware, speed, watching):
        yield from kind.alerts(rules)
