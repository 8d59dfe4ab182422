"""The ledger's terms as queries, shared by the dashboards that stack them."""

from traincope_dashboards.panels.panels import Query
from traincope_dashboards.rules.recorded import TERM_SHARE
from traincope_dashboards.scope import Scope


def ledger_shares(scope: Scope) -> list[Query]:
    """Every term as a share of step time. Terms of an axis are named term[axis], as in the report."""
    with_axis, without = scope.where(axis='!=""'), scope.where(axis='=""')
    return [
        Query(expression=without.recorded(TERM_SHARE), legend="{{term}}"),
        Query(expression=with_axis.recorded(TERM_SHARE), legend="{{term}}[{{axis}}]"),
    ]
