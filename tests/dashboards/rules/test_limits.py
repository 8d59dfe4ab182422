import pytest

from traincope.errors import UsageError
from traincope_dashboards.rules.alerts import alerts
from traincope_dashboards.rules.limits import Limits, duration, with_settings
from traincope_dashboards.rules.rules import alerting


def test_a_changed_limit_appears_in_its_rule() -> None:
    limits = with_settings(Limits(), ["checkpoint_seconds=600", "hold=2"])
    (overdue,) = [alert for alert in alerts(limits) if alert.name == "CheckpointOverdue"]
    assert "min by (run) (traincope_checkpoint_age_seconds) > 600 and" in overdue.expression
    # Five minutes, doubled.
    assert "for: 10m" in alerting([overdue], limits=limits, grafana="")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("hang=5", "there is no limit 'hang'; choose one of agent_lag_seconds, baseline_seconds,"),
        ("hang_seconds=soon", "'hang_seconds=soon' is not a limit: write NAME=NUMBER"),
        ("hang_seconds", "'hang_seconds' is not a limit: write NAME=NUMBER"),
        ("hang_seconds=-1", "the limit hang_seconds must be positive"),
        ("hang_seconds=nan", "the limit hang_seconds must be positive"),
        ("hang_seconds=inf", "the limit hang_seconds must be positive"),
    ],
)
def test_an_invalid_setting_is_refused(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_settings(Limits(), [setting])


def test_a_duration_is_written_in_its_largest_whole_unit() -> None:
    assert [duration(seconds) for seconds in (21600, 300, 90, 1.5, 0.0001)] == ["6h", "5m", "90s", "1500ms", "1ms"]
