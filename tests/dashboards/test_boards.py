import json
import re
from collections import Counter, defaultdict
from typing import Any

import pytest
from grafana_foundation_sdk.models import units

from tests.dashboards.queries import LABELS_OF, labels, series_names, targets
from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.metric import Fold
from traincope.palette import colour
from traincope_dashboards.build import dashboards
from traincope_dashboards.panels.board import Look

BUILT = {name: json.loads(text) for name, text in dashboards(Look()).items()}
PANELS = {
    f"{name.removeprefix('traincope-')}, {panel['title']}": panel
    for name, board in BUILT.items()
    for panel in board["panels"]
}


def test_the_dashboards_are_these_eight() -> None:
    assert [board["title"] for board in BUILT.values()] == [
        "traincope / Overview",
        "traincope / MFU ledger",
        "traincope / Ranks and hosts",
        "traincope / Communication",
        "traincope / Pipeline",
        "traincope / Faults and goodput",
        "traincope / Hardware",
        "traincope / Recorder health",
    ]


@pytest.mark.parametrize("from_rules", [False, True], ids=["asked anew", "as recorded"])
def test_queries_use_only_existing_metrics_and_their_labels(from_rules: bool) -> None:
    for text in dashboards(Look(from_rules=from_rules)).values():
        for target in targets(text):
            names = series_names(target.expression)
            assert names, target.where
            assert names <= LABELS_OF.keys(), target.where
            known = set().union(*(LABELS_OF[name] for name in names)) | {"le"}
            assert labels(target.expression) <= known, target.where


def test_every_metric_of_the_catalogue_is_shown_somewhere() -> None:
    shown = {
        name
        for text in dashboards(Look()).values()
        for entry in targets(text)
        for name in series_names(entry.expression)
    }
    shown |= {name for text in dashboards(Look()).values() for name in series_names(_variables(text))}
    assert {metric.prometheus for metric in CATALOGUE} - shown == set()


def _variables(text: str) -> str:
    return " ".join(str(entry.get("query", "")) for entry in json.loads(text)["templating"]["list"])


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_a_panels_description_has_several_statements(panel: dict[str, str]) -> None:
    parts = re.split(r"[.:;] ", panel["description"])
    assert len(parts) >= 2
    assert 60 < len(panel["description"]) < 400


def test_panels_have_unique_ids_and_fill_rows_without_gaps() -> None:
    for board in BUILT.values():
        assert [panel["id"] for panel in board["panels"]] == list(range(1, len(board["panels"]) + 1))
        rows: dict[int, int] = Counter()
        for panel in board["panels"]:
            place = panel["gridPos"]
            assert place["x"] == rows[place["y"]]
            rows[place["y"]] += place["w"]
        # Only the last row may leave space on the right.
        assert set(list(rows.values())[:-1]) == {24}


def test_dashboards_share_variables_and_links_keep_them() -> None:
    for board in BUILT.values():
        variables = [variable["name"] for variable in board["templating"]["list"]]
        assert variables == ["datasource", "run", "host", "rank", "axis", "viewer"]
        others, viewer = board["links"]
        assert (others["type"], others["tags"], others["includeVars"]) == ("dashboards", ["traincope"], True)
        assert viewer["url"] == "${viewer:raw}"


@pytest.mark.parametrize(("name", "panel"), PANELS.items(), ids=PANELS)
def test_a_panel_works_by_default_or_states_the_setting_that_it_needs(name: str, panel: dict[str, Any]) -> None:
    """By default, folded series have no rank and no GPU, and some metrics have no series."""
    queries = [target["expr"] for target in panel["targets"]]
    omitted = {metric.prometheus for metric in CATALOGUE if metric.fold is Fold.OMIT}
    folded = {metric.prometheus for metric in CATALOGUE if metric.fold is not None}
    lacks = any(
        series_names(query) & omitted
        or (series_names(query) & folded and re.search(r"\bby \([^)]*\b(rank|gpu)\b", query))
        for query in queries
    )
    assert lacks == ("TRAINCOPE_METRICS_PER_RANK=on" in panel["description"]), name


def test_one_colour_means_one_term() -> None:
    metrics: dict[str, set[str]] = defaultdict(set)
    for panel in PANELS.values():
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            for prop in override["properties"]:
                if prop["id"] == "color":
                    metrics[override["matcher"]["options"]].add(prop["value"]["fixedColor"])
    assert {name: colours for name, colours in metrics.items() if len(colours) > 1} == {}
    for term in ("forward", "exposed_wait[fsdp]", "data_wait", "unattributed"):
        assert metrics[term] == {colour(term)}
    assert metrics["imbalance"] == {colour("bubble.imbalance")}


def test_a_point_links_to_the_step_at_its_time() -> None:
    for panel in PANELS.values():
        if panel["type"] != "timeseries":
            continue
        link = panel["fieldConfig"]["defaults"]["links"][0]
        assert link["url"].startswith("${viewer:raw}/timeline?step=${__data.fields.step.numeric}")
        assert panel["targets"][-1]["legendFormat"] == "step"
        step, _, others = panel["targets"][-1]["expr"].partition(" and on () ")
        assert step == 'max(traincope_step_last{run="$run"})'
        assert bool(others) == ("noValue" in panel["fieldConfig"]["defaults"])
        # All series are in one table by time; otherwise a point could not read the step's value.
        assert panel["transformations"] == [{"id": "joinByField", "options": {"byField": "Time", "mode": "outer"}}]


def test_a_line_or_row_of_one_rank_links_to_that_rank() -> None:
    per_rank = PANELS["ranks, Straggler wait of the worst ranks"]["fieldConfig"]["defaults"]["links"][0]["url"]
    assert per_rank.endswith("/timeline?step=${__data.fields.step.numeric}&ranks=${__field.labels.rank}")
    for name in ("ranks, Worst ranks", "faults, Faults by rank"):
        overrides = PANELS[name]["fieldConfig"]["overrides"]
        (link,) = [prop for entry in overrides for prop in entry["properties"] if prop["id"] == "links"]
        assert link["value"][0]["url"].endswith("step=${__data.fields.step.numeric}&ranks=${__data.fields.rank}")
        assert "step" in PANELS[name]["transformations"][1]["options"]["renameByName"].values()


def test_the_viewers_address_is_the_given_one() -> None:
    for text in dashboards(Look(viewer="https://view.example")).values():
        viewer = json.loads(text)["templating"]["list"][-1]
        assert viewer["query"] == viewer["current"]["value"] == "https://view.example"


def test_units_are_grafanas() -> None:
    known = {unit for unit in vars(units).values() if isinstance(unit, str)}
    used = set(re.findall(r'"unit": "(\w+)"', json.dumps(list(PANELS.values()))))
    assert used - known == set()
    assert {"s", "percentunit", "Bps", "bytes", "hertz", "watt", "celsius"} <= used


def test_no_options_are_null() -> None:
    # Grafana does not show a panel whose options are null.
    assert all(panel["options"] is not None for panel in PANELS.values())
