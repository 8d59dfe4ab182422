import json
import re
from collections import Counter, defaultdict

import pytest
from grafana_foundation_sdk.models import units

from tests.dashboards.queries import LABELS_OF, labels, series_names, targets
from traincope.metrics import (
    ACTION_TIME,
    BUBBLE,
    BUBBLE_PART,
    CATALOGUE,
    FAULTS,
    GPU_CLOCK,
    GPU_ECC,
    GPU_NVLINK,
    GPU_POWER,
    GPU_THROTTLED,
    GPU_XID,
    MODULE_TIME,
)
from traincope.palette import colour
from traincope_dashboards.board import Look
from traincope_dashboards.build import dashboards

BUILT = {name: json.loads(text) for name, text in dashboards(Look()).items()}
PANELS = {
    f"{name.removeprefix('traincope-')}, {panel['title']}": panel
    for name, board in BUILT.items()
    for panel in board["panels"]
}


def test_these_are_the_dashboards() -> None:
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
def test_queries_name_only_metrics_that_there_are_and_labels_that_these_have(from_rules: bool) -> None:
    for text in dashboards(Look(from_rules=from_rules)).values():
        for target in targets(text):
            names = series_names(target.expression)
            assert names, target.where
            assert names <= LABELS_OF.keys(), target.where
            known = set().union(*(LABELS_OF[name] for name in names)) | {"le"}
            assert labels(target.expression) <= known, target.where


def test_every_metric_of_the_catalogue_is_shown_somewhere() -> None:
    shown = {
        name for text in dashboards(Look()).values() for one in targets(text) for name in series_names(one.expression)
    }
    shown |= {name for text in dashboards(Look()).values() for name in series_names(_variables(text))}
    assert {metric.prometheus for metric in CATALOGUE} - shown == set()


def _variables(text: str) -> str:
    return " ".join(str(one.get("query", "")) for one in json.loads(text)["templating"]["list"])


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_a_panel_says_how_to_read_it_and_what_to_do(panel: dict[str, str]) -> None:
    parts = re.split(r"[.:;] ", panel["description"])
    assert len(parts) >= 2
    assert 60 < len(panel["description"]) < 400


def test_panels_have_ids_of_their_own_and_stand_in_rows_without_gaps() -> None:
    for board in BUILT.values():
        assert [panel["id"] for panel in board["panels"]] == list(range(1, len(board["panels"]) + 1))
        rows: dict[int, int] = Counter()
        for panel in board["panels"]:
            place = panel["gridPos"]
            assert place["x"] == rows[place["y"]]
            rows[place["y"]] += place["w"]
        # Only the last row may be open to the right.
        assert set(list(rows.values())[:-1]) == {24}


def test_all_dashboards_have_the_same_variables_and_keep_them_on_the_way_to_each_other() -> None:
    for board in BUILT.values():
        variables = [variable["name"] for variable in board["templating"]["list"]]
        assert variables == ["datasource", "run", "host", "rank", "axis", "viewer"]
        others, viewer = board["links"]
        assert (others["type"], others["tags"], others["includeVars"]) == ("dashboards", ["traincope"], True)
        assert viewer["url"] == "${viewer:raw}"


def test_one_colour_means_one_term() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    for panel in PANELS.values():
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            for prop in override["properties"]:
                if prop["id"] == "color":
                    seen[override["matcher"]["options"]].add(prop["value"]["fixedColor"])
    assert {name: colours for name, colours in seen.items() if len(colours) > 1} == {}
    for term in ("forward", "exposed_wait[fsdp]", "data_wait", "unattributed"):
        assert seen[term] == {colour(term)}
    assert seen["imbalance"] == {colour("bubble.imbalance")}


def test_a_point_of_a_line_leads_to_the_step_that_was_reached_then() -> None:
    for panel in PANELS.values():
        if panel["type"] != "timeseries":
            continue
        link = panel["fieldConfig"]["defaults"]["links"][0]
        assert link["url"].startswith("${viewer:raw}/timeline?step=${__data.fields.step.numeric}")
        assert panel["targets"][-1]["legendFormat"] == "step"
        assert panel["targets"][-1]["expr"] == 'max(traincope_step_last{run="$run"})'
        # All series in one table by time, or a point of one would not know the other's value.
        assert panel["transformations"] == [{"id": "joinByField", "options": {"byField": "Time", "mode": "outer"}}]


def test_a_line_or_a_row_of_one_rank_leads_to_that_rank() -> None:
    per_rank = PANELS["ranks, Wait that the worst ranks cause"]["fieldConfig"]["defaults"]["links"][0]["url"]
    assert per_rank.endswith("/timeline?step=${__data.fields.step.numeric}&ranks=${__field.labels.rank}")
    for name in ("ranks, Worst ranks", "faults, Faults by rank"):
        overrides = PANELS[name]["fieldConfig"]["overrides"]
        (link,) = [prop for one in overrides for prop in one["properties"] if prop["id"] == "links"]
        assert link["value"][0]["url"].endswith("step=${__data.fields.step.numeric}&ranks=${__data.fields.rank}")
        assert "step" in PANELS[name]["transformations"][1]["options"]["renameByName"].values()


def test_the_viewers_address_is_what_is_told() -> None:
    for text in dashboards(Look(viewer="https://view.example")).values():
        viewer = json.loads(text)["templating"]["list"][-1]
        assert viewer["query"] == viewer["current"]["value"] == "https://view.example"


def test_panels_that_may_rightly_be_empty_say_why() -> None:
    metrics = (BUBBLE, BUBBLE_PART, FAULTS, GPU_CLOCK, GPU_ECC, GPU_NVLINK, GPU_POWER, GPU_THROTTLED, GPU_XID)
    not_always = {metric.prometheus for metric in (*metrics, MODULE_TIME, ACTION_TIME)}
    silent = [
        name
        for name, panel in PANELS.items()
        if series_names(panel["targets"][0]["expr"]) <= not_always and "noValue" not in panel["fieldConfig"]["defaults"]
    ]
    assert silent == []


def test_units_are_grafanas() -> None:
    known = {unit for unit in vars(units).values() if isinstance(unit, str)}
    used = set(re.findall(r'"unit": "(\w+)"', json.dumps(list(PANELS.values()))))
    assert used - known == set()
    assert {"s", "percentunit", "Bps", "bytes", "hertz", "watt", "celsius"} <= used


def test_no_options_are_null() -> None:
    # Grafana does not start a panel whose options are null.
    assert all(panel["options"] is not None for panel in PANELS.values())
