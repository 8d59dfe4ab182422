"""All tables of a run by name. A new table is one `View` in a module of this package, and one entry here."""

from collections.abc import Mapping

from traincope.tables.collectives import COLLECTIVES_VIEW, NCCL_VIEW
from traincope.tables.faults import FAULTS_VIEW
from traincope.tables.ranks import RANKS_VIEW
from traincope.tables.records import METRICS_VIEW, RECORDS_VIEW, SPANS_VIEW
from traincope.tables.steps import LEDGER_VIEW, STEPS_VIEW
from traincope.tables.view import View

VIEWS: Mapping[str, View] = {
    view.name: view
    for view in (
        STEPS_VIEW,
        RANKS_VIEW,
        LEDGER_VIEW,
        FAULTS_VIEW,
        COLLECTIVES_VIEW,
        NCCL_VIEW,
        SPANS_VIEW,
        METRICS_VIEW,
        RECORDS_VIEW,
    )
}
"""Name -> view. Those that need the whole analysis come first, so that later ones share its results."""
