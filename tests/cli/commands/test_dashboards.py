import importlib.util
import json
from pathlib import Path

import pytest

from tests.dashboards.fake_grafana import TOKEN, FakeGrafana, serving
from traincope.cli.main import main


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["dashboards", *arguments])
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def test_build_writes_dashboards_runbooks_and_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code, printed, _ = run(["build", "-o", str(out), "--set", "hang_seconds=600", "--viewer", "http://v:1"], capsys)
    assert code == 0
    assert f"{out}/grafana/dashboards: 8 files\n" in printed
    assert f"{out}/prometheus: 2 files\n" in printed
    overview = json.loads((out / "grafana" / "dashboards" / "traincope-overview.json").read_text())
    assert overview["templating"]["list"][-1]["query"] == "http://v:1"
    assert ", 600) and" in (out / "prometheus" / "alerts.yaml").read_text()


def test_push_prints_the_outcome_of_each_dashboard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    with serving(FakeGrafana().handle) as url:
        code, printed, _ = run(["push", "--url", url], capsys)
        assert code == 0
        lines = printed.splitlines()
        assert lines[:2] == [f"Grafana 11.6.0 at {url}", "  created  folder traincope"]
        assert "  created  dashboard traincope / Overview" in lines
        assert lines[-1] == f"{url}/d/traincope-overview"
        _, again, _ = run(["push", "--url", url], capsys)
        assert again.count("unchanged") == 40


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["push", "--url", "http://127.0.0.1:1"], 2, "Grafana needs a token: set GRAFANA_TOKEN, or give --token"),
        (["push", "--url", "grafana", "--token", "t"], 2, "'grafana' is not the URL of a Grafana"),
        (["push", "--url", "http://127.0.0.1:1", "--token", "t"], 9, "http://127.0.0.1:1 cannot be reached"),
        (["build", "--set", "hang=1", "-o", "x"], 2, "there is no limit 'hang'"),
        (["build", "-o", "/dev/null/x"], 2, "cannot be written: Not a directory; give another directory with -o"),
    ],
)
def test_bad_input_is_one_sentence_and_its_exit_code(
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN", raising=False)
    left, _, error = run(arguments, capsys)
    assert left == code
    assert error.startswith(f"traincope dashboards: {message}") or message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("action", "package"), [(["build"], "grafana_foundation_sdk"), (["push", "--url", "http://g"], "grafana_client")]
)
def test_a_missing_package_is_named_with_its_extra(
    action: list[str], package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original_find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else original_find_spec(name))
    code, _, error = run(action, capsys)
    assert (code, error) == (8, f"traincope dashboards: dashboards need {package}: pip install 'traincope[grafana]'\n")
