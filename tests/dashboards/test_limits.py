import pytest

from traincope.errors import UsageError
from traincope_dashboards.alerts import alerts
from traincope_dashboards.limits import Limits, duration, with_settings
from traincope_dashboards.rules import alerting


def test_a_limit_that_is_set_is_in_its_rule() -> None:
    limits = with_settings(Limits(), ["checkpoint_seconds=600", "hold=2"])
    (overdue,) = [alert for alert in alerts(limits) if alert.name == "CheckpointOverdue"]
    assert "min by (run) (traincope_checkpoint_age_seconds) > 600 and" in overdue.expression
    # Five minutes, twice as long.
    assert "for: 10m" in alerting([overdue], limits=limits, grafana="")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("hang=5", "there is no limit 'hang'; there are agent_lag_seconds, baseline_seconds,"),
        ("hang_seconds=soon", "'hang_seconds=soon' is not a limit: write NAME=NUMBER"),
        ("hang_seconds", "'hang_seconds' is not a limit: write NAME=NUMBER"),
        ("hang_seconds=-1", "the limit hang_seconds must be positive"),
        ("hang_seconds=nan", "the limit hang_seconds must be positive"),
        ("hang_seconds=inf", "the limit hang_seconds must be positive"),
    ],
)
def test_a_setting_that_cannot_be_is_said_to_be_wrong(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_settings(Limits(), [setting])


def test_a_duration_is_written_in_its_largest_whole_unit() -> None:
    assert [duration(seconds) for seconds in (21600, 300, 90, 1.5, 0.0001)] == ["6h", "5m", "90s", "1500ms", "1ms"]
