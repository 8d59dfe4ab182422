"""Configurations in the documentation, checked by promtool."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.debian import need
from traincope.live.serve.discovery import DIRECTORY_VARIABLE
from traincope_exporters.prometheus import settings

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "prometheus.md").read_text()
CONFIGURATIONS = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "scrape_configs" in block]


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_prometheus_accepts_every_documented_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(text)
    for name in ("ca.pem", "password"):
        (tmp_path / name).touch()
    promtool = need("promtool", package="prometheus")
    command = [promtool, "check", "config", "--syntax-only", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(command, timeout=150, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_every_variable_is_documented() -> None:
    variables = {value for name, value in vars(settings).items() if name.endswith("_VARIABLE")}
    assert len(variables) == 4
    assert {*variables, DIRECTORY_VARIABLE} <= set(re.findall(r"`(TRAINCOPE_\w+)", PAGE))
    assert f"127.0.0.1:{settings.DEFAULT_PORT}" in PAGE
