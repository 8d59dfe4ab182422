"""Template variables that all dashboards share, and the scopes made of them.

Links keep the variables, so another dashboard shows the same run, hosts and ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from traincope.metrics.catalogue import COLLECTIVE_TRANSFER, RANK_INFO, RUN_INFO, STEP_DURATION
from traincope_dashboards.scope import Scope

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
EVERY = ".*"
RUN = {"run": '="$run"'}
HOST = {"host": '=~"$host"'}
RANK = {"rank": '=~"$rank"'}
AXIS = {"axis": '=~"$axis"'}
WINDOW = "$__rate_interval"
PANEL_NEEDS = "Needs TRAINCOPE_METRICS_PER_RANK=on."
"""For panels of series that are left out by default."""
RANKS_NEED = "Single ones need TRAINCOPE_METRICS_PER_RANK=on."
"""For panels of series that are folded per host by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    job: Scope
    """The whole run."""
    shown: Scope
    """The chosen hosts and ranks."""
    axes: Scope
    """The chosen axes on the chosen hosts."""


def per_host(scope: Scope) -> str:
    """Number of each host's ranks that have finished a step."""
    return f"count by (host) ({scope.series_of(STEP_DURATION)})"


def make_scopes(*, from_rules: bool) -> Scopes:
    return Scopes(
        job=Scope(matchers=RUN, window=WINDOW, from_rules=from_rules),
        shown=Scope(matchers={**RUN, **HOST, **RANK}, window=WINDOW),
        axes=Scope(matchers={**RUN, **HOST, **AXIS}, window=WINDOW),
    )


def variables(
    *, viewer: str
) -> Iterator[builders.QueryVariable | builders.DatasourceVariable | builders.TextBoxVariable]:
    """The template variables. `viewer` is the URL of `traincope view` from the reader's browser."""
    everything = Scope(window=WINDOW)
    run = everything.where(**RUN)
    yield builders.DatasourceVariable("datasource").label("data source").type("prometheus")
    yield _values("run", everything.series_of(RUN_INFO), about="One job; its attempts share the name.")
    yield _many("host", run.series_of(RUN_INFO), about="Hosts to show.")
    yield _many("rank", run.where(**HOST).series_of(RANK_INFO), about="Ranks of these hosts to show.")
    yield _many("axis", run.series_of(COLLECTIVE_TRANSFER), about="Mesh axes to show.")
    yield (
        builders.TextBoxVariable("viewer")
        .description("Address of `traincope view RUN`: links of panels lead there, to the clicked step.")
        .default_value(viewer)
        .current(models.VariableOption(text=viewer, value=viewer))
    )


def _values(label: str, series: str, *, about: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(label)
        .description(about)
        .datasource(DATASOURCE)
        .query({"query": f"label_values({series}, {label})", "refId": label})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
    )


def _many(label: str, series: str, *, about: str) -> builders.QueryVariable:
    everything = models.VariableOption(text="All", value="$__all")
    return _values(label, series, about=about).multi(True).include_all(True).all_value(EVERY).current(everything)
