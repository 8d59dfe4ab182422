import pytest

from traincope.metrics.catalogue import COLLECTIVE_TIMES, LEDGER, MFU
from traincope_dashboards.rules.recorded import EXPOSED_SHARE, RECORDED
from traincope_dashboards.scope import Scope

RUN = Scope(matchers={"run": '="$run"', "rank": '=~"$rank"'}, window="5m")


def test_a_metric_is_filtered_by_the_labels_it_has() -> None:
    assert RUN.series_of(LEDGER) == 'traincope_ledger_seconds_total{run="$run",rank=~"$rank"}'
    assert RUN.series_of(MFU) == 'traincope_mfu_ratio{run="$run"}'
    assert Scope(window="5m").series_of(MFU) == "traincope_mfu_ratio"


def test_a_rate_looks_back_over_the_scopes_window() -> None:
    assert RUN.rate(COLLECTIVE_TIMES, suffix="_bucket", op='="send"') == (
        'rate(traincope_collective_duration_seconds_bucket{run="$run",op="send"}[5m])'
    )


def test_a_label_of_no_metric_raises() -> None:
    with pytest.raises(ValueError, match=r"traincope_mfu_ratio has no labels \['axis'\]"):
        RUN.series_of(MFU, axis='="fsdp"')
    with pytest.raises(ValueError, match=r"no metric has the labels \['trem'\]"):
        RUN.where(trem='="forward"')


def test_a_wider_scope_lacks_the_label() -> None:
    assert RUN.without("rank").series_of(LEDGER) == 'traincope_ledger_seconds_total{run="$run"}'


def test_a_recorded_rule_renders_as_name_or_expression() -> None:
    narrow = RUN.where(axis='="fsdp"')
    by_name = Scope(matchers=narrow.matchers, window="5m", from_rules=True).recorded(EXPOSED_SHARE)
    assert by_name == 'run_axis:traincope_exposed_share:ratio{run="$run",axis="fsdp"}'
    exposed = 'run="$run",rank=~"$rank",axis="fsdp",term=~"exposed_transfer|exposed_wait"'
    assert narrow.recorded(EXPOSED_SHARE) == (
        f"sum by (run, axis) (rate(traincope_ledger_seconds_total{{{exposed}}}[5m])) / on (run) group_left"
        ' sum by (run) (rate(traincope_step_wall_seconds_total{run="$run",rank=~"$rank"}[5m]))'
    )


def test_recorded_names_are_different() -> None:
    assert len({rule.name for rule in RECORDED}) == len(RECORDED) == 17
