"""The ledger's terms as the queries that several dashboards stack."""

from traincope_dashboards.panels import Query
from traincope_dashboards.recorded import TERM_SHARE
from traincope_dashboards.scope import Scope


def ledger_shares(scope: Scope) -> list[Query]:
    """Every term as a share of step time: those of an axis named term[axis], as the report does."""
    with_axis, without = scope.where(axis='!=""'), scope.where(axis='=""')
    return [
        Query(expression=without.recorded(TERM_SHARE), legend="{{term}}"),
        Query(expression=with_axis.recorded(TERM_SHARE), legend="{{term}}[{{axis}}]"),
    ]
