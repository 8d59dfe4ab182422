"""Kinds of panels of the dashboards, with all settings that Grafana needs.

`text` is the panel's description: how to read it, and what to do. `if_empty` is shown instead of missing data that is
normal, and says why it is missing. Links lead from a point or a row to the step reached at that time, in the viewer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as choices
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from traincope.metrics.catalogue import LAST_STEP
from traincope.palette import GOOD, GREY, SEVERE
from traincope_dashboards.panels.variables import DATASOURCE, RUN, WINDOW
from traincope_dashboards.scope import Scope

Coloured = TypeVar("Coloured", timeseries.Panel, bargauge.Panel)
Panel = timeseries.Panel | stat.Panel | table.Panel | heatmap.Panel | bargauge.Panel

SECONDS, RATIO, BYTES, RATE, PLAIN = "s", "percentunit", "bytes", "Bps", "short"
HALF, THIRD, FULL = 12, 8, 24
"""Widths, in the 24 columns of Grafana's grid."""
HEIGHT = 9

STEP = "step"
STEP_NOW = f"max({Scope(matchers=RUN, window=WINDOW).series_of(LAST_STEP)})"
STEP_THEN = "${__data.fields.step.numeric}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: one query, whose series are the rows."""

    name: str
    expression: str
    unit: str = PLAIN


def over_time(
    title: str,
    *,
    text: str,
    queries: Sequence[Query],
    unit: str = PLAIN,
    colours: Mapping[str, str] | None = None,
    stacked: bool = False,
    per_rank: bool = False,
    if_empty: str | None = None,
    width: int = HALF,
) -> timeseries.Panel:
    """Lines, or stacked areas. A point's link leads to its step (and rank, if a line is one rank)."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(HEIGHT)
        .line_width(0 if stacked else 1.5)
        .fill_opacity(80 if stacked else 0)
        .show_points(choices.VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(
            common.VizTooltipOptions()
            .mode(choices.TooltipDisplayMode.MULTI)
            .sort(choices.SortOrder.NONE if stacked else choices.SortOrder.DESCENDING)
        )
        .data_links([_to_viewer(step=STEP_THEN, rank="${__field.labels.rank}" if per_rank else "")])
    )
    if if_empty is not None:
        panel.no_value(if_empty)
    if stacked:
        panel.stacking(common.StackingConfig().mode(choices.StackingMode.NORMAL))
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(_ranged(query, letter=letter))
    return _with_step(_coloured(panel, colours or {}), [] if if_empty is None else queries)


def times(title: str, *, text: str, buckets: str, if_empty: str | None = None, width: int = HALF) -> heatmap.Panel:
    """Heatmap of a histogram's buckets over time; its exemplars are dots that link to their step."""
    panel = _heat(title, text=text, width=width, unit="short").y_axis(heatmap.YAxisConfig().unit(SECONDS))
    if if_empty is not None:
        panel.no_value(if_empty)
    query = _target(buckets, letter="A").range().format(PromQueryFormat.HEATMAP).legend_format("{{le}}").exemplar(True)
    return panel.with_target(query)


def rows(
    title: str, *, text: str, query: Query, unit: str, if_empty: str | None = None, width: int = HALF
) -> heatmap.Panel:
    """Heatmap with one row per series, coloured by value."""
    panel = _heat(title, text=text, width=width, unit=unit)
    if if_empty is not None:
        panel.no_value(if_empty)
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(choices.HeatmapCellLayout.AUTO))
    return panel.with_target(_ranged(query, letter="A"))


def number(
    title: str,
    *,
    text: str,
    expression: str,
    unit: str = PLAIN,
    bad_above: float | None = None,
    width: int = 3,
    if_empty: str | None = None,
    links_to_step: bool = False,
) -> stat.Panel:
    """The latest value, large; red from `bad_above` on. With `links_to_step` the value is a step and links to it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(4)
        .color_mode(choices.BigValueColorMode.VALUE)
        .graph_mode(choices.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(bad_above))
    )
    if if_empty is not None:
        panel.no_value(if_empty)
    if links_to_step:
        panel.decimals(0).data_links([_to_viewer(step="${__value.numeric}")])
    return panel.with_target(_ranged(Query(expression=expression, legend=title), letter="A"))


def bars(
    title: str,
    *,
    text: str,
    queries: Sequence[Query],
    unit: str = RATIO,
    colours: Mapping[str, str] | None = None,
    if_empty: str | None = None,
    width: int = HALF,
) -> bargauge.Panel:
    """Current values, one bar per series."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(HEIGHT)
        .orientation(choices.VizOrientation.HORIZONTAL)
        .display_mode(choices.BarGaugeDisplayMode.BASIC)
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(GREY))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if if_empty is not None:
        panel.no_value(if_empty)
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(_target(query.expression, letter=letter).instant().legend_format(query.legend))
    return _coloured(panel, colours or {})


def listing(
    title: str,
    *,
    text: str,
    keys: Sequence[str],
    columns: Sequence[Column],
    if_empty: str | None = None,
    width: int = FULL,
    rank_links: bool = False,
) -> table.Panel:
    """A table with one row for each combination of the labels `keys`, sorted by the first column, largest first.

    With `rank_links` a row's rank links to the viewer; the table then has the column `step`.
    """
    panel = table.Panel().title(title).description(text).datasource(DATASOURCE).span(width).height(HEIGHT)
    if if_empty is not None:
        panel.no_value(if_empty)
    panel.sort_by([common.TableSortByFieldState().display_name(columns[0].name).desc(True)])
    for letter, column in zip("ABCDEFGH", columns, strict=False):
        panel.with_target(_target(column.expression, letter=letter).instant().format(PromQueryFormat.TABLE))
        panel.override_by_name(column.name, [models.DynamicConfigValue(id_val="unit", value=column.unit)])
    if rank_links:
        link = {"title": "this rank's timeline", "url": _viewer_url(step=STEP_THEN, rank="${__data.fields.rank}")}
        panel.override_by_name("rank", [models.DynamicConfigValue(id_val="links", value=[link])])
    names = {f"Value #{letter}": column.name for letter, column in zip("ABCDEFGH", columns, strict=False)}
    if len(columns) == 1:
        names = {"Value": columns[0].name}
    order = {name: place for place, name in enumerate([*keys, *names])}
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    return panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names},
        )
    )


def _heat(title: str, *, text: str, width: int, unit: str) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .span(width)
        .height(HEIGHT)
        .calculate(False)
        .color(_scheme())
        .cell_values(heatmap.CellValues().unit(unit))
        .show_legend()
        .filter_values(heatmap.FilterValueRange().le(1e-9))
    )


def _scheme() -> heatmap.HeatmapColorOptions:
    return heatmap.HeatmapColorOptions().mode(heat.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64).exponent(0.5)


def _thresholds(bad_above: float | None) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="text" if bad_above is None else GOOD)]
    if bad_above is not None:
        steps.append(models.Threshold(value=bad_above, color=SEVERE))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(choices.LegendDisplayMode.LIST)
        .placement(choices.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _target(expression: str, *, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).ref_id(letter).datasource(DATASOURCE)


def _ranged(query: Query, *, letter: str) -> prometheus.Dataquery:
    return _target(query.expression, letter=letter).range().legend_format(query.legend)


def _viewer_url(*, step: str, rank: str = "") -> str:
    return f"${{viewer:raw}}/timeline?step={step}" + (f"&ranks={rank}" if rank else "")


def _to_viewer(*, step: str, rank: str = "") -> dashboard.DashboardLink:
    return dashboard.DashboardLink("this step in the viewer").url(_viewer_url(step=step, rank=rank)).target_blank(True)


def _with_step(panel: timeseries.Panel, may_be_empty: Sequence[Query]) -> timeseries.Panel:
    """Add the reached step as a hidden series; links of a point read it at the point's time.

    Where the queries `may_be_empty` are, there is no step either: Grafana shows `if_empty` only without any series.
    """
    hidden = {
        "custom.hideFrom": {"viz": True, "legend": True, "tooltip": True},
        "custom.stacking": {"mode": "none"},
        "custom.axisPlacement": "hidden",
        "unit": "none",
    }
    shown = " or ".join(f"({query.expression})" for query in may_be_empty)
    step = f"{STEP_NOW} and on () ({shown})" if shown else STEP_NOW
    panel.with_target(_ranged(Query(expression=step, legend=STEP), letter="S"))
    panel.override_by_name(STEP, [models.DynamicConfigValue(id_val=name, value=hidden[name]) for name in hidden])
    return panel.with_transformation(
        models.DataTransformerConfig(id_val="joinByField", options={"byField": "Time", "mode": "outer"})
    )


def _coloured(panel: Coloured, colours: Mapping[str, str]) -> Coloured:
    for name, colour in colours.items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        panel.override_by_name(name, [models.DynamicConfigValue(id_val="color", value=fixed)])
    return panel
